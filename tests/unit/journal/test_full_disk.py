"""A workspace on a disk that is full, for real: what frees space works, and the rest goes on."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from tests.disks import fill, mounted, room
from tests.laws import seeds
from tests.unit.cli.test_shuffle_commands import make_run
from tests.unit.journal.kills_kit import KILLED, child_dies_on_a_full_disk, in_child

import millrace as mr
from millrace.cli.main import cli
from millrace.config import MIB, Config
from millrace.errors import BrokerStopped, StorageError
from millrace.journal.embedded.disk_reserve import RESERVE, Reserve
from millrace.workspace import Workspace, runtime_of

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(count: int, size: int = 10, first: int = 0) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "text": ["x" * size] * count})


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=8m") as folder:
        yield folder


def made(disk: Path) -> Workspace:
    """A workspace with a journal that a group has read, one that nobody has, and a small one."""
    ws = mr.open(disk / "mill")
    for name in ("read", "unread", "small"):
        ws.journals.create(name, SCHEMA)
    ws.journals.append("read", rows(1000, 1000))
    ws.journals.append("unread", rows(700, 1000))
    ws.journals.append("small", rows(3))
    ws.journals.commit("g", "read", 1000, expected=None)
    return ws


def test_a_full_disk_refuses_appends_and_nothing_else(disk: Path) -> None:
    ws = made(disk)
    fill(disk)
    for size in (1000, 10):
        with pytest.raises(StorageError, match=r"(?s)full.*to fix: .*free space"):
            ws.journals.append("read", rows(1000, size))

    assert len(ws.journals.list()) == 3
    assert ws.journals.read("unread", 0).num_rows == 700
    assert runtime_of(ws).joined_broker().truncate_committed("read").removed == 1000
    ws.journals.append("small", rows(2, first=3))
    fill(disk)
    ws.journals.delete("unread")
    ws.journals.append("small", rows(2, first=5))
    assert ws.journals.read("small", 0).rows()["id"].to_pylist() == list(range(7))
    ws.close()


def test_writing_goes_on_by_itself_when_there_is_room(disk: Path) -> None:
    ws = made(disk)
    ballast = fill(disk)
    with pytest.raises(StorageError):
        ws.journals.append("small", rows(1000))
    ballast.unlink()

    ws.journals.append("small", rows(1000, first=3))
    assert ws.journals.read("small", 0).num_rows == 1003
    ws.close()


def test_the_commands_work_on_a_full_disk(disk: Path) -> None:
    made(disk).close()
    fill(disk)
    mill = disk / "mill"

    assert len(json.loads(call("journal", "ls", mill, "--json").output)) == 3
    assert call("journal", "read", mill, "unread", "--json").output.count("\n") == 20
    assert call("journal", "gc", mill).output.endswith("removed 1,000 rows\n")
    fill(disk)
    assert call("journal", "delete", mill, "unread", "--yes").output == "deleted unread\n"
    assert [row["name"] for row in json.loads(call("journal", "ls", mill, "--json").output)] == [
        "read",
        "small",
    ]
    with mr.open(mill) as ws:
        ws.journals.append("small", rows(2, first=3))


def test_the_commands_work_again_and_again_while_the_disk_stays_full(disk: Path) -> None:
    made(disk).close()
    for _ in range(5):
        fill(disk)
        assert len(json.loads(call("journal", "ls", disk / "mill", "--json").output)) == 3
    assert call("journal", "delete", disk / "mill", "unread", "--yes").exit_code == 0


def test_an_owner_killed_on_a_full_disk_is_followed_by_one_that_frees_space(disk: Path) -> None:
    made(disk).close()
    assert in_child(child_dies_on_a_full_disk, str(disk)) == KILLED
    assert room(disk) == 0

    with mr.open(disk / "mill") as ws:
        assert ws.journals.read("unread", 0).num_rows == 700
        assert ws.journals.read("large", 0).num_rows > 10
        for name in ("unread", "large"):
            ws.journals.delete(name)
        assert ws.journals.append("small", rows(1)).first_offset == 3


def test_deleting_what_lies_in_the_ledger_makes_room_in_the_ledger(disk: Path) -> None:
    ws = mr.open(disk / "mill")
    names = [f"j/{number}" for number in range(40)]
    runtime_of(ws).joined_broker().create_many(names, SCHEMA)
    with contextlib.suppress(StorageError):
        while True:
            for name in names:
                ws.journals.append(name, rows(50, 100))
    fill(disk)
    for name in names[1:]:
        ws.journals.delete(name)
    end = ws.journals.end_offset(names[0])

    assert ws.journals.append(names[0], rows(50, 100)).first_offset == end
    ws.close()


def test_shuffles_are_listed_and_removed_on_a_full_disk(disk: Path) -> None:
    with mr.open(disk / "mill", create=True) as ws:
        for _ in range(3):
            make_run(ws)
    fill(disk)

    assert len(json.loads(call("shuffle", "ls", disk / "mill", "--json").output)) == 3
    gone = json.loads(
        call("shuffle", "gc", disk / "mill", "--ttl", "0s", "--drop-runs", "0s", "--json").output
    )
    assert gone["runs"] == 3
    assert room(disk) > 0


def test_the_reserve_is_taken_when_there_is_room_and_not_before(disk: Path) -> None:
    reserve, file = Reserve(str(disk), MIB), disk / RESERVE
    reserve.begin()
    assert (reserve.is_held, file.stat().st_size) == (True, MIB)
    reserve.release()
    ballast = fill(disk)
    assert not reserve.hold()
    assert not file.exists()
    Reserve(str(disk), MIB).begin()
    assert not file.exists()

    ballast.unlink()
    fill(disk, leave_bytes=MIB // 2)
    reserve.hold_rest()
    assert (reserve.is_held, file.stat().st_size) == (False, MIB // 2)
    (disk / "ballast-0").unlink()
    assert reserve.hold()
    assert file.stat().st_size == MIB


def fills_up_and_goes_on(disk: Path, seed: int, turns: int) -> int:
    """Appends, deletes and truncates while the disk fills up and empties; how many were refused."""
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    config = Config(
        journal_reserve_bytes=MIB // 4,
        ledger_checkpoint_bytes=MIB,
        journal_small_bytes_max=20_000,
    )
    ws = mr.open(disk / "mill", config=config)
    expected: dict[str, list[int]] = {}
    refused = 0
    for turn in range(turns):
        # What others take while the reserve is given away is gone.
        if chance.random() < 0.3 and (disk / "mill" / "journals" / RESERVE).exists():
            fill(disk, leave_bytes=chance.choice([0, 0, 4096, 20_000, 300_000]))
        name = f"j/{chance.randrange(6)}"
        doing = chance.choice(["append", "append", "append", "truncate", "delete", "room", "open"])
        try:
            if doing == "append":
                if name not in expected:
                    ws.journals.create(name, SCHEMA)
                    expected[name] = []
                count = chance.choice([1, 30, 300])
                ws.journals.append(name, rows(count, 100, first=turn * 1000))
                expected[name] += range(turn * 1000, turn * 1000 + count)
            elif doing == "truncate" and name in expected:
                runtime_of(ws).joined_broker().truncate_before(
                    name, runtime_of(ws).joined_broker().end_offset(name)
                )
                expected[name] = []
            elif doing == "delete" and name in expected:
                ws.journals.delete(name)
                del expected[name]
            elif doing == "open":
                ws.close()
                ws = mr.open(disk / "mill", config=config)
        except StorageError:
            assert doing == "append", "only what takes room may be refused"
            refused += 1
        if doing == "room":
            for ballast in disk.glob("ballast-*"):
                ballast.unlink()
        for known, ids in expected.items():
            at = ws.journals.start_offset(known)
            assert ws.journals.read(known, at).rows()["id"].to_pylist() == ids
    ws.close()
    return refused


def test_a_disk_that_fills_up_and_empties_loses_nothing(disk: Path) -> None:
    assert fills_up_and_goes_on(disk, seed=1, turns=80) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(12, first=2))
def test_many_disks_that_fill_up_and_empty_lose_nothing(disk: Path, seed: int) -> None:
    assert fills_up_and_goes_on(disk, seed, turns=150) > 0


def test_a_broker_that_stopped_is_opened_again_by_the_next_call(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = made(disk)
    fill(disk)
    monkeypatch.setenv("MILLRACE_FAULT", "journal.ledger.before_commit:raise")
    with pytest.raises(BrokerStopped):
        ws.journals.delete("read")
    monkeypatch.delenv("MILLRACE_FAULT")

    assert ws.journals.read("unread", 0).num_rows == 700
    ws.journals.delete("read")
    ws.journals.append("small", rows(1, first=3))
    assert ws.journals.read("small", 0).num_rows == 4
    ws.close()
