"""Wrong arguments of the workspace, jobs and reads are answered with what, found and what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.cli.main import main
from millrace.errors import MillraceError
from millrace.journal.api import broker_of

ROWS = pa.table({"a": [1], "t": ["x"]})


def source(ws: Any) -> Any:  # noqa: ANN401 - called in wrong ways
    return ws.job("j").source("s", ws.from_arrow(ROWS))


def job_with_source(ws: Any) -> Any:  # noqa: ANN401 - called in wrong ways
    job = ws.job("j")
    job.source("s", ws.from_arrow(ROWS))
    return job


WRONG: dict[str, Callable[[Any, Path], object]] = {
    "open a file": lambda _, folder: mr.open(folder / "file"),
    "open below a file": lambda _, folder: mr.open(folder / "file" / "mill"),
    "open a number": lambda *_: mr.open(3),  # type: ignore[arg-type]
    "open nothing": lambda *_: mr.open(""),
    "open None": lambda *_: mr.open(None),  # type: ignore[arg-type]
    "open a NUL": lambda *_: mr.open("a\0b"),
    "open a wrong url": lambda *_: mr.open("hdfs://host/folder"),
    "config a dict": lambda _, folder: mr.open(folder / "w", config={"sync": True}),  # type: ignore[arg-type]
    "broker": lambda _, folder: mr.open(folder / "w", broker="rabbit"),
    "read nothing there": lambda ws, folder: ws.read_parquet(folder / "nowhere"),
    "read a number": lambda ws, _: ws.read_parquet(3),
    "read no paths": lambda ws, _: ws.read_parquet([]),
    "read a list of numbers": lambda ws, _: ws.read_parquet([3]),
    "read a text as parquet": lambda ws, folder: ws.read_parquet(folder / "file"),
    "schema of text": lambda ws, folder: ws.read_csv(folder / "file", schema="a int"),
    "from a list": lambda ws, _: ws.from_arrow([1, 2]),
    "from no frame": lambda ws, _: ws.from_spark(3),
    "job without a name": lambda ws, _: ws.job(""),
    "job with a number": lambda ws, _: ws.job(3),
    "job with a slash": lambda ws, _: ws.job("a/b"),
    "no such shuffle": lambda ws, _: ws.open_shuffle("nightly"),
    "no such run": lambda ws, _: ws.open_shuffle(99),
    "ttl of text": lambda ws, _: ws.cleanup(ttl="3"),
    "ttl below 0": lambda ws, _: ws.cleanup(ttl=-1),
    "age of text": lambda ws, _: ws.drop_runs(older_than="7y"),
    "no such read file": lambda ws, _: ws.reads("totals"),
    "no bindings": lambda *_: mr.CoordinatedRead("t", []),
    "bindings of text": lambda *_: mr.CoordinatedRead("t", "orders"),  # type: ignore[arg-type]
    "binding of a number": lambda *_: mr.Binding(name="o", prefix=3),  # type: ignore[arg-type]
    "nothing to read": lambda ws, _: ws.job("j").source("s"),
    "source of a number": lambda ws, _: ws.job("j").source("s", 3),
    "partitions of text": lambda ws, _: ws.job("j").source("s", source(ws), partitions="4"),
    "source twice": lambda ws, _: job_with_source(ws).source("s", ws.from_arrow(ROWS)),
    "filter by a function": lambda ws, _: source(ws).filter(len),
    "filter by a slip": lambda ws, _: source(ws).filter("aa > 1"),
    "map by a name": lambda ws, _: source(ws).map("m", "f"),
    "map to nothing": lambda ws, _: source(ws).map("m", len),
    "a wrong type": lambda ws, _: source(ws).map("m", len, schema="a bigin"),
    "retries of text": lambda ws, _: source(ws).map("m", len, schema="a int", retries="3"),
    "on_error": lambda ws, _: source(ws).map("m", len, schema="a int", on_error="ignore"),
    "journal of a number": lambda ws, _: source(ws).sink_journal(3),
    "sink nowhere": lambda ws, _: source(ws).sink_parquet(""),
    "sink a number": lambda ws, _: source(ws).sink_parquet(3),
    "key of a number": lambda ws, _: source(ws).key_by(3),
    "union of a number": lambda ws, _: source(ws).union(3),
    "on_change": lambda ws, _: job_with_source(ws).run(on_change="maybe"),
    "files of a number": lambda *_: mr.files(3),  # type: ignore[arg-type]
    "files nowhere": lambda _, folder: mr.files(str(folder / "nowhere" / "*")),
}


JOURNALS: dict[str, Callable[[Any], object]] = {
    "schema": lambda journals: journals.create("x", "n int"),
    "name": lambda journals: journals.create(3, ROWS.schema),
    "odd name": lambda journals: journals.create("a b?", ROWS.schema),
    "labels": lambda journals: journals.create("x", ROWS.schema, labels=["a"]),
    "a label": lambda journals: journals.create("x", ROWS.schema, labels={"a": 3}),
    "rows as a list": lambda journals: journals.append("orders", [1, 2]),
    "rows as a dict": lambda journals: journals.append("orders", {"a": [1]}),
    "other columns": lambda journals: journals.append("orders", pa.table({"m": [1]})),
    "no journal": lambda journals: journals.append("oders", ROWS),
    "expected": lambda journals: journals.append("orders", ROWS, expected="0"),
    "offset as text": lambda journals: journals.read("orders", "0"),
    "no offset": lambda journals: journals.read("orders", None),
    "offset below 0": lambda journals: journals.read("orders", -1),
    "rows_max": lambda journals: journals.read("orders", 0, rows_max="3"),
    "group": lambda journals: journals.commit(3, "orders", 1, expected=None),
    "committed text": lambda journals: journals.commit("g", "orders", "1", expected=None),
    "beyond the end": lambda journals: journals.commit("g", "orders", 99, expected=None),
    "truncate text": lambda journals: journals.truncate("orders", before="1"),
    "truncate too far": lambda journals: journals.truncate("orders", before=99),
    "delete nothing": lambda journals: journals.delete("oders"),
    "truncate nothing": lambda journals: journals.truncate("orders"),
    "producer": lambda journals: journals.append("orders", ROWS, producer=3, sequence=1),
    "timeout": lambda journals: journals.wait_for_rows({"orders": 0}, timeout="soon"),
    "holder": lambda journals: broker_of(journals).acquire("lease", 3),  # type: ignore[arg-type]
    "lease name": lambda journals: broker_of(journals).acquire(3, "host"),  # type: ignore[arg-type]
    "no lease": lambda journals: broker_of(journals).renew("lease"),  # type: ignore[arg-type]
    "release": lambda journals: broker_of(journals).release(3),  # type: ignore[arg-type]
    "prefix": lambda journals: journals.list(3),
    "publish": lambda journals: broker_of(journals).publish({"orders": ROWS}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_wrong_argument_of_journals_says_what_to_do(name: str, workspace: mr.Workspace) -> None:
    if not workspace.journals.list("orders"):
        workspace.journals.create("orders", ROWS.schema)
    with pytest.raises(MillraceError) as error:
        JOURNALS[name](workspace.journals)
    what, way = str(error.value).split("\n  to fix: ")
    assert what
    assert way


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path_factory.mktemp("mill"), create=True) as opened:
        yield opened


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_says_what_to_do(
    name: str, workspace: mr.Workspace, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(MillraceError) as error:
        WRONG[name](workspace, tmp_path)
    what, way = str(error.value).split("\n  to fix: ")
    assert what
    assert way
    assert "system log" not in way


@pytest.mark.parametrize(
    "given",
    [
        ["journal", "ls", "{folder}/nowhere"],
        ["journal", "cat", "{mill}", "oders"],
        ["journal", "ls", "{folder}/file"],
        ["shuffle", "ls", "{folder}/file"],
        ["shuffle", "gc", "{mill}", "--ttl", "soon"],
        ["job", "status", "{mill}", "nightly"],
        ["reads", "status", "{mill}", "totals"],
    ],
    ids=lambda given: " ".join(given[:2]),
)
def test_a_wrong_command_line_says_what_to_do(
    given: list[str],
    workspace: mr.Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("not a folder")
    places = {"folder": tmp_path, "mill": workspace.path}
    monkeypatch.setattr(sys, "argv", ["millrace", *(text.format(**places) for text in given)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code
    assert "to fix: " in said or "Usage: " in said
