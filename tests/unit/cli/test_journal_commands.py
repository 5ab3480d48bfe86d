"""`millrace journal ...` beside an owner and without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import JournalUnknown, UserError
from millrace.workspace import Workspace

SCHEMA = pa.schema([("id", pa.int64()), ("offset", pa.string()), ("data", pa.binary())])


def rows(*ids: int) -> pa.RecordBatch:
    texts = [f"[bold]{number}" for number in ids]
    data = [b"\xff" if number == 1 else b"x" for number in ids]
    return pa.record_batch([pa.array(ids), pa.array(texts), pa.array(data)], schema=SCHEMA)


def call(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=answer)


@pytest.fixture(params=["owned elsewhere", "owned by nobody"])
def mill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    ws = mr.open(tmp_path / "mill")
    ws.journals.create("acme/a", SCHEMA, {"region": "eu"})
    ws.journals.create("acme/b", SCHEMA)
    ws.journals.append("acme/a", rows(0, 1, 2, 3, 4))
    with ws.journals.transaction() as t:
        t.append("acme/a", rows(5))
        t.append("acme/b", rows(6))
        t.commit("fast", "acme/a", 4, expected=None)
        t.commit("slow", "acme/a", 3, expected=None)
    if request.param == "owned by nobody":
        ws.close()
    yield tmp_path / "mill"
    ws.close()


def test_ls_shows_rows_offsets_and_labels(mill: Path) -> None:
    text = call("journal", "ls", mill)
    found = json.loads(call("journal", "ls", mill, "--json").output)
    under = json.loads(call("journal", "ls", mill, "--json", "--prefix", "acme/b").output)

    assert text.exit_code == 0
    assert "region=eu" in text.output
    keys = ("name", "rows", "start", "end", "min_committed")
    assert [[row[key] for key in keys] for row in found] == [
        ["acme/a", 6, 0, 7, 3],
        ["acme/b", 1, 0, 2, None],
    ]
    assert found[0]["columns"] == {"id": "int64", "offset": "string", "data": "binary"}
    assert [row["name"] for row in under] == ["acme/b"]


def test_read_prints_rows_from_an_offset_up_to_a_limit(mill: Path) -> None:
    lines = call("journal", "read", mill, "acme/a", "--json", "--from", 1, "--limit", 2)
    everything = call("journal", "read", mill, "acme/a", "--json", "--limit", 0)
    text = call("journal", "read", mill, "acme/a")

    assert [json.loads(line) for line in lines.output.splitlines()] == [
        {"_mr_offset": 1, "id": 1, "offset": "[bold]1", "data": "\\xff"},
        {"_mr_offset": 2, "id": 2, "offset": "[bold]2", "data": "x"},
    ]
    assert [json.loads(line)["id"] for line in everything.output.splitlines()] == list(range(6))
    assert text.exit_code == 0
    assert "[bold]4" in text.output


def test_read_raw_shows_every_stored_row(mill: Path) -> None:
    lines = call("journal", "read", mill, "acme/b", "--raw", "--json").output
    flags = [json.loads(line)["_mr_flag"] for line in lines.splitlines()]

    assert flags == [1, 2]
    assert "_mr_clock" in call("journal", "read", mill, "acme/b", "--raw").output


def test_gc_removes_what_every_group_has_read_and_nothing_twice(mill: Path) -> None:
    done = call("journal", "gc", mill)
    again = json.loads(call("journal", "gc", mill, "--json").output)
    found = json.loads(call("journal", "ls", mill, "--json").output)

    assert done.output == "acme/a: 3 rows\nremoved 3 rows\n"
    assert again == {"rows": 0, "journals": {}}
    assert [(row["start"], row["rows"]) for row in found] == [(3, 3), (0, 1)]


def test_delete_asks_first(mill: Path) -> None:
    kept = call("journal", "delete", mill, "acme/b", answer="n\n")
    assert kept.exit_code == 1
    assert "journal acme/b with 1 row for good?" in kept.output
    gone = call("journal", "delete", mill, "acme/b", answer="y\n")
    assert gone.exit_code == 0
    assert call("journal", "delete", mill, "acme/a", "--yes").output == "deleted acme/a\n"
    assert json.loads(call("journal", "ls", mill, "--json").output) == []


def test_what_is_not_there_is_told_apart(mill: Path, tmp_path: Path) -> None:
    ws: Workspace = mr.open(tmp_path / "other", create=True)
    assert isinstance(call("journal", "ls", ws.path).exception, UserError)
    assert not (tmp_path / "other/journals").exists()
    unknown = call("journal", "read", mill, "none").exception
    assert isinstance(unknown, JournalUnknown)


@pytest.mark.parametrize(
    "command",
    [["serve"], ["journal"], *(["journal", name] for name in ("ls", "read", "gc", "delete"))],
)
def test_every_command_explains_itself(command: list[str]) -> None:
    found = call(*command, "--help")
    assert found.exit_code == 0
    assert len(found.output) > 150


# Following.


def shown(*arguments: object) -> list[dict[str, object]]:
    found = call("journal", "read", *arguments, "--json")
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_read_follow_ends_at_an_offset_or_a_limit(mill: Path) -> None:
    bounded = shown(mill, "acme/a", "--follow", "--from", 2, "--to", 5)
    limited = shown(mill, "acme", "--follow", "--limit", 7)

    assert [(row["_mr_journal"], row["_mr_offset"], row["id"]) for row in bounded] == [
        ("acme/a", 2, 2),
        ("acme/a", 3, 3),
        ("acme/a", 4, 4),
    ]
    assert sorted(int(str(row["id"])) for row in limited) == list(range(7))
    text = call("journal", "read", mill, "acme/b", "--follow", "--limit", 1).stdout
    assert text.splitlines() == ["journal\toffset\tid\toffset\tdata", "acme/b\t0\t6\t[bold]6\tx"]


def test_read_takes_a_key_and_passes_over_journals_that_cannot_hold_it(mill: Path) -> None:
    assert [row["id"] for row in shown(mill, "acme", "--key", "id=3")] == [3]
    assert shown(mill, "acme", "--key", "id=3", "--key", "offset=[bold]4") == []
    assert [
        row["id"] for row in shown(mill, "acme", "--follow", "--key", "id=6", "--limit", 1)
    ] == [6]
    wrong = call("journal", "read", mill, "acme", "--key", "id=three").exception
    assert isinstance(wrong, UserError)
    assert "key id='three' is no value of journal 'acme/a'" in str(wrong)
    assert "is no pair" in str(call("journal", "read", mill, "acme", "--key", "id").exception)
    assert "--raw" in str(call("journal", "read", mill, "acme", "--raw", "--follow").exception)


def test_read_without_follow_is_cut_at_an_offset_too(mill: Path) -> None:
    assert [row["id"] for row in shown(mill, "acme/a", "--from", 1, "--to", 3)] == [1, 2]
    assert shown(mill, "acme/a", "--from", "end") == []
    assert shown(mill, "acme/a", "--to", 0) == []
    text = call("journal", "read", mill, "acme/a", "--from", "soon")
    assert text.exit_code == 2


def test_ctrl_c_ends_a_follower_without_a_fuss(mill: Path) -> None:
    main = "from millrace.cli.main import main; main()"
    command = [sys.executable, "-c", main, "journal", "read", str(mill), "acme", "--follow"]
    with subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(7)]
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=60)

    assert sorted(line["id"] for line in lines) == list(range(7))
    assert (rest, complaints, process.returncode) == ("", "", 0)


def test_a_follower_of_nothing_says_that_it_waits(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", create=True) as ws:
        ws.journals.list()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call, "journal", "read", ws.path, "new", "--follow", "--limit", 1)
            ws.journals.create("new/1", SCHEMA)
            ws.journals.append("new/1", rows(1))
            found = waiting.result(60)

    assert found.exit_code == 0
    assert "new/1\t0\t1" in found.stdout
