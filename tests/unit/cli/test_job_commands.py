"""`millrace job ...` on a job that was played by hand; only `run` would start Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import UserError
from millrace.pipeline.core import hops
from millrace.pipeline.paid.call_records import Totals
from millrace.workspace import runtime_of


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in ("job", *arguments)])


@pytest.fixture(params=["owned elsewhere", "owned by nobody"])
def mill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    ws = mr.open(tmp_path / "mill")
    played = Played.started(runtime_of(ws).joined_broker())
    for partition in range(2):
        played.do("caption", "videos", partition, 4)
        played.record_calls(partition, Totals(calls=5, in_doubt=1))
        played.do("by_user", "caption", partition, 4)
    played.dead_letter("caption")
    if request.param == "owned by nobody":
        ws.close()
    yield tmp_path / "mill"
    ws.close()


def test_ls_shows_each_job(mill: Path) -> None:
    text = call("ls", mill)
    (found,) = json.loads(call("ls", mill, "--json").output)

    assert text.exit_code == 0, text.output
    line = next(line for line in text.output.splitlines() if JOB in line)
    assert [cell.strip() for cell in line.strip("│").split("│")][1:4] == ["killed", "", "1"]
    assert (found["job"], found["state"], found["caught_up"]) == (JOB, "killed", False)


def test_status_shows_each_step(mill: Path) -> None:
    text = call("status", mill, JOB)
    found = json.loads(call("status", mill, JOB, "--json").output)

    assert "run it again to go on where it stopped" in text.output
    steps = {step["name"]: step for step in found["steps"]}
    assert (steps["caption"]["calls"], steps["caption"]["in_doubt"]) == (10, 2)
    assert (steps["by_user"]["rows_in"], steps["out"]["backlog"]) == (8, 8)


def test_dead_letters_are_printed_with_their_row_and_error(mill: Path) -> None:
    text = call("dead-letters", mill, JOB, "caption")
    (found,) = map(
        json.loads,
        call("dead-letters", mill, JOB, "caption", "--json").output.splitlines(),
    )

    assert '{"n": 1}' in text.output
    assert "[/e]" in text.output
    assert (found["error"], found["traceback"], found["row_json"]) == ("[/e]", "t", '{"n": 1}')
    assert call("dead-letters", mill, JOB, "by_user", "--json").output == ""


def test_dead_letters_are_retried_once_and_then_no_longer_shown(mill: Path) -> None:
    other = call("retry-dead-letters", mill, JOB, "--class", "ValueError")
    done = call("retry-dead-letters", mill, JOB, "--step", "caption")
    again = call("retry-dead-letters", mill, JOB, "--json")

    assert other.output == "no dead letters\n"
    assert done.output == "caption: 1 row for the next run\n"
    assert json.loads(again.output) == {}
    assert call("dead-letters", mill, JOB, "caption", "--json").output == ""
    steps = json.loads(call("status", mill, JOB, "--json").output)["steps"]
    assert [step["dead_letters"] for step in steps] == [0, 0, 0]


def test_reset_says_what_it_set_back(mill: Path) -> None:
    done = call("reset", mill, JOB, "by_user")

    assert done.output == "set back: by_user, out\n"
    with mr.open(mill) as ws:
        assert ws.journals.list(hops.step_root(JOB, "by_user")) == ()


def test_gc_removes_what_all_have_read_and_nothing_more(mill: Path) -> None:
    done = call("gc", mill, JOB)

    assert done.output.startswith("removed 16 rows from 4 journals, 0 large values"), done.output
    assert call("gc", mill, JOB).output.startswith("removed 0 rows from 0 journals")
    found = json.loads(call("status", mill, JOB, "--json").output)
    assert [step["rows_in"] for step in found["steps"]] == [8, 8, 0]


def test_what_is_not_there_is_said(mill: Path, tmp_path: Path) -> None:
    def error(*arguments: object) -> str:
        with pytest.raises(UserError) as raised:
            CliRunner().invoke(cli, [str(a) for a in ("job", *arguments)], catch_exceptions=False)
        return str(raised.value)

    assert f"there is no job 'other' in this workspace\n  found: {JOB}" in error(
        "status", mill, "other"
    )
    assert "there is no workspace at" in error("ls", tmp_path / "nothing")
    assert "has no step 'x'" in error("reset", mill, JOB, "x")
    file = tmp_path / "job.py"
    file.write_text("x = 1\n")
    assert "has no function build(ws)" in error("run", mill, file)
    file.write_text("def build(ws):\n    return 7\n")
    assert "returned a int" in error("run", mill, file)


def test_help_says_what_a_file_must_have() -> None:
    text = call("run", "--help").output

    assert "def build(ws):" in text
    assert "--on-change" in text
