"""Lines of logs: documents with the ids of the thread that logs, here and in tasks; no secrets."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.unit.pipeline.worker.worker_kit import JOB, Bench, fill, hop, map_step

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import UserError
from millrace.log_lines import LogSettings, log_ids, show_as, show_logs, shown_logs
from millrace.pipeline.run.worker_orders import WorkerOrder
from millrace.wakeup import WorkerThread
from millrace.workspace import runtime_of

LOG = logging.getLogger("millrace.tests")


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    show_logs("OFF")


def documents(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_a_document_with_the_ids_of_its_thread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_logs("INFO", format="json")
    with log_ids(run=7):
        with log_ids(stage=2, task=3):
            LOG.info('rows "%s"\nof two lines', "ü")
        thread = WorkerThread(lambda: LOG.warning("of another thread"), "other")
        thread.start()
        thread.ended.wait(30)
    LOG.info("of none")
    LOG.debug("not shown")

    inner, other, none = documents(capsys)
    assert inner["message"] == 'rows "ü"\nof two lines'
    assert (inner["level"], inner["logger"]) == ("INFO", "millrace.tests")
    assert (inner["run"], inner["stage"], inner["task"]) == (7, 2, 3)
    assert (other["run"], other["level"], "stage" in other) == (7, "WARNING", False)
    assert "run" not in none
    assert inner["time"].endswith("+00:00")


def test_an_error_brings_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    show_logs("INFO", format="json")
    try:
        int("no number")
    except ValueError:
        LOG.exception("failed")

    (line,) = documents(capsys)
    assert line["traceback"].startswith("Traceback")
    assert "ValueError: invalid literal" in line["traceback"]


def test_a_line_of_text_ends_with_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    show_logs()
    with log_ids(run=7, job="captions"):
        LOG.info("begun")
    LOG.info("ended")

    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO millrace.tests: begun [job=captions run=7]")
    assert second.endswith("INFO millrace.tests: ended")


@pytest.mark.parametrize("given", [{"level": "LOUD"}, {"level": "info"}, {"format": "xml"}])
def test_what_is_no_level_or_format_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="to fix: give one of DEBUG, INFO"):
        show_logs(**given)


def test_it_is_shown_once_however_often_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):
        show_logs("INFO", format="json")
    LOG.info("once")

    assert len(documents(capsys)) == 1


def test_what_the_driver_shows_travels_with_its_workers() -> None:
    show_logs("DEBUG", format="json")
    fields = dict.fromkeys(WorkerOrder.__dataclass_fields__)
    del fields["logs"]
    sent = pickle.dumps(WorkerOrder(**fields).logs)  # type: ignore[arg-type]
    show_logs("OFF")
    assert shown_logs() is None

    show_as(pickle.loads(sent))

    assert shown_logs() == LogSettings("DEBUG", "json")


def test_workers_name_job_run_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("sk-secret-of-the-provider")

    step = map_step("ask", fails, expensive=True, on_error="dead_letter", retries=1)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, [5])
    show_logs("INFO", format="json")

    bench.run()

    lines = documents(capsys)
    raised = [line for line in lines if "of a call raised ValueError" in line["message"]]
    assert [(line["job"], line["run"], line["step"]) for line in raised] == [(JOB, 1, "ask")] * 2
    assert any("1 dead letters" in line["message"] for line in lines)
    assert "sk-secret" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--log-format", "json"], LogSettings("WARNING", "json")),
        (["-v"], LogSettings("INFO", "text")),
        (["-vv", "--log-format", "json"], LogSettings("DEBUG", "json")),
        ([], None),
    ],
)
def test_the_command_line_shows_what_it_is_told(
    tmp_path: Path, given: list[str], shown: LogSettings | None
) -> None:
    mr.open(tmp_path / "mill", create=True).close()

    result = CliRunner().invoke(cli, [*given, "shuffle", "ls", str(tmp_path / "mill")])

    assert (result.exit_code, shown_logs()) == (0, shown)


def test_no_line_has_a_token_or_a_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN", "token-0123456789abcdef-0123456789")
    show_logs("DEBUG", format="json")
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", pa.schema([("n", pa.int64())]))
        ws.journals.append("orders", pa.table({"n": [1]}))
        token = runtime_of(ws).token
        with pytest.raises(mr.MillraceError):
            mr.open(
                tmp_path / "other", ledger="postgresql://me:pass-w0rd@127.0.0.1:1/none"
            ).journals.create("orders", pa.schema([("n", pa.int64())]))

    text = capsys.readouterr().err
    assert "owns the journals" in text
    assert token not in text
    assert "token-0123456789abcdef" not in text
    assert "pass-w0rd" not in text
