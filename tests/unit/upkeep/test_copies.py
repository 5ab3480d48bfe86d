"""Plain copies of a workspace: recognised, checked, and never mixed with their original."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.unit import at_rest_kit as kit

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import DataLost, MillraceError, UserError
from millrace.testing.fault_injection import armed

SCHEMA = pa.schema([("number", pa.int64())])
CONFIG = Config(sync=False, ledger_snapshot_records=16)
KILLED = -9


def numbers(count: int, first: int = 0) -> pa.Table:
    return pa.table({"number": list(range(first, first + count))}, schema=SCHEMA)


def values(ws: mr.Workspace) -> list[int]:
    rows = kit.all_rows(ws, "a")
    assert isinstance(rows, list)
    return [row["number"] for row in rows]


def claimed(path: Path, *options: str) -> MillraceError | None:
    """What the command says is wrong; None if all is right."""
    result = CliRunner().invoke(cli, ["claim", str(path), *options])
    assert result.exception is None or isinstance(result.exception, MillraceError), result
    return result.exception


@pytest.fixture
def mill(tmp_path: Path) -> Path:
    with mr.open(tmp_path / "mill", config=CONFIG) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", numbers(10))
        ws.from_arrow(numbers(3))
    return tmp_path / "mill"


def test_a_copy_is_refused_until_it_is_claimed_and_is_another_workspace_then(
    mill: Path, tmp_path: Path
) -> None:
    copy, heir = tmp_path / "copy", tmp_path / "heir"
    shutil.copytree(mill, copy)
    shutil.copytree(mill, heir)
    with pytest.raises(UserError, match=f"{copy} is a copy of another workspace"):
        mr.open(copy)
    with pytest.raises(UserError, match="is a copy"):
        mr.open(copy, create=False)

    assert claimed(copy) is None
    assert claimed(heir, "--same-id") is None
    assert "is no copy" in str(claimed(mill))

    with mr.open(mill) as ws, mr.open(copy) as other, mr.open(heir) as same:
        assert (other.id == ws.id, same.id == ws.id) == (False, True)
        other.journals.append("a", numbers(1, 10))
        assert values(ws) == list(range(10)), "its owner was not joined"
        assert values(other) == list(range(11))
        assert ws.verify().problems == other.verify().problems == ()
    assert (mill / "token").read_text() != (copy / "token").read_text()


def test_a_workspace_that_was_renamed_or_is_reached_by_a_link_is_the_same(
    mill: Path, tmp_path: Path
) -> None:
    with mr.open(mill) as ws:
        before = ws.id
    mill.rename(tmp_path / "renamed")
    mill.symlink_to(tmp_path / "renamed")
    for path in (tmp_path / "renamed", mill):
        with mr.open(path) as ws:
            assert ws.id == before


@pytest.mark.parametrize("ledger", ["sqlite", "files"])
def test_a_copy_of_a_workspace_that_is_written_is_whole_or_refused(
    tmp_path: Path, ledger: str
) -> None:
    """Copied by `cp -r`, while rows are written, files come and go, and the owner answers."""
    mill, acknowledged, done_writing = tmp_path / "mill", [0], threading.Event()

    def write(ws: mr.Workspace) -> None:
        while not done_writing.is_set():
            ws.journals.append("a", numbers(400, acknowledged[0]))
            acknowledged[0] += 400
            for value in range(5):
                ws.journals.append("a", numbers(1, acknowledged[0] + value))
            acknowledged[0] += 5

    with mr.open(mill, ledger=ledger, config=CONFIG) as ws:
        ws.journals.create("a", SCHEMA)
        writer = threading.Thread(target=write, args=(ws,))
        writer.start()
        try:
            for number in range(4):
                copy = tmp_path / f"copy-{number}"
                at_least = acknowledged[0]
                subprocess.run(
                    ["cp", "-r", str(mill), str(copy)], check=False, stderr=subprocess.DEVNULL
                )
                with pytest.raises(UserError, match="is a copy"):
                    mr.open(copy)
                refused = claimed(copy)
                if refused is not None:
                    assert isinstance(refused, DataLost), refused
                    assert "that is not whole" in str(refused)
                    with pytest.raises(UserError, match="is a copy"):
                        mr.open(copy)
                    continue
                with mr.open(copy) as other:
                    rows = values(other)
                    other.journals.append("a", numbers(1, -1))
                assert rows == list(range(len(rows)))
                assert len(rows) >= at_least
        finally:
            done_writing.set()
            writer.join()
        assert values(ws) == list(range(acknowledged[0])), "the original was not disturbed"


@pytest.mark.parametrize(
    "point",
    [
        "claim.before_workspace",
        pytest.param("claim.after_note", marks=pytest.mark.slow),
        pytest.param("claim.after_workspace", marks=pytest.mark.slow),
    ],
)
def test_a_claim_that_is_killed_is_no_workspace_and_goes_on(
    mill: Path, tmp_path: Path, point: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(mill, copy)
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "claim"]
    done = subprocess.run([*command, str(copy)], env=armed(point), check=False, capture_output=True)
    assert done.returncode == KILLED

    with pytest.raises(UserError, match="is a copy"):
        mr.open(copy)
    assert claimed(copy) is None
    with mr.open(copy) as other, mr.open(mill) as ws:
        assert other.verify().problems == ()
        assert other.id != ws.id
        assert values(other) == list(range(10))
