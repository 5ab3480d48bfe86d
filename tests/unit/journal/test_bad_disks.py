"""Disks that run full, fail to sync or forget, and a ledger whose log is torn."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import FILES, SCHEMA, column, publish, read_all
from tests.unit.journal.kills_kit import child_fills_up, in_child

from millrace.config import Config
from millrace.errors import BrokerStopped, StorageError
from millrace.faults import VARIABLE
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.mark_files import MARK, PLACES
from millrace.journal.embedded.ledger.sqlite_ledger import SqliteLedger
from millrace.journal.embedded.segment_disk import SegmentDisk
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.testing.bad_disks import RefusingDisk

J = "acme/orders"
LARGE = FILES.with_options(journal_segment_bytes_target=1 << 20)


def opened(folder: Path, disk: SegmentDisk | None = None, config: Config = LARGE) -> EmbeddedBroker:
    return EmbeddedBroker.open(str(folder), config, disk=disk)


@pytest.mark.parametrize(("operation", "at"), [("sync", 3), ("sync_folder", 1), ("sync_folder", 2)])
def test_after_a_failed_sync_nothing_is_written_any_more(
    tmp_path: Path, operation: str, at: int
) -> None:
    broker = opened(tmp_path, RefusingDisk(operation, at))
    broker.create(J, SCHEMA)
    done: list[int] = []

    def go_on() -> None:
        for value in range(5):
            broker.append(J, column([value]))
            done.append(value)

    with pytest.raises(BrokerStopped, match="Input/output error"):
        go_on()
    before = {path: path.read_bytes() for path in tmp_path.glob("segments/*/*")}

    for _ in range(2):
        with pytest.raises(BrokerStopped, match="nothing is written from now on"):
            broker.append(J, column([9]))
    with pytest.raises(BrokerStopped):
        broker.commit("g", J, 0, expected=None)
    with pytest.raises(BrokerStopped):
        broker.tidy()
    assert read_all(broker, J) == done
    broker.close()
    assert {path: path.read_bytes() for path in tmp_path.glob("segments/*/*")} == before
    broker = opened(tmp_path)
    assert read_all(broker, J) == done
    assert broker.append(J, column([7])).first_offset == len(done)
    broker.close()


def test_a_full_disk_refuses_one_append_and_the_next_goes_on(tmp_path: Path) -> None:
    broker = opened(tmp_path, RefusingDisk("write", 2, errno.ENOSPC))
    broker.create(J, SCHEMA)
    broker.append(J, column([1]))
    (path,) = tmp_path.glob("segments/*/*")
    size = path.stat().st_size

    with pytest.raises(StorageError, match="the disk is full"):
        broker.append(J, column([2]))
    assert path.stat().st_size == size
    assert broker.append(J, column([3])).first_offset == 1
    assert read_all(broker, J) == [1, 3]
    broker.close()


def test_a_full_disk_while_moving_out_loses_nothing(tmp_path: Path) -> None:
    config = Config(journal_waiting_total_bytes_max=1000)
    broker = opened(tmp_path, RefusingDisk("write", 1, errno.ENOSPC), config)
    broker.create(J, SCHEMA)
    for value in range(5):
        broker.append(J, column([value]))
    broker.tidy()

    assert read_all(broker, J) == [0, 1, 2, 3, 4]
    broker.close()


def test_a_ledger_that_fails_to_commit_stops_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(tmp_path)
    for name in ("a", "b"):
        broker.create(name, SCHEMA)
    monkeypatch.setenv(VARIABLE, "journal.ledger.before_commit:raise")
    with pytest.raises(BrokerStopped, match="whether the last requests were saved is not known"):
        publish(broker, {"a": column([1]), "b": column([2])}, ("g", "a", 0, None))
    monkeypatch.delenv(VARIABLE)

    with pytest.raises(BrokerStopped):
        broker.append("a", column([3]))
    assert broker.committed("g", "a") is None
    broker.close()
    broker = opened(tmp_path)
    assert read_all(broker, "a") == read_all(broker, "b") == []
    broker.close()


@pytest.mark.parametrize("room", [600_000, 1_000_000])
def test_a_disk_that_runs_full_inside_the_ledger_loses_nothing(tmp_path: Path, room: int) -> None:
    told = tmp_path / "told"
    assert in_child(child_fills_up, str(tmp_path / "mill"), str(told), room) == 0
    found = json.loads(told.read_text(encoding="utf-8"))

    assert set(found["problems"]) <= {"StorageError", "BrokerStopped"}
    assert len(found["problems"]) == 3
    assert len(found["done"]) > 10
    broker = opened(tmp_path / "mill")
    rows = broker.read("a", 0).rows()["x"].to_pylist()
    assert [v for v in rows if v in set(found["done"])] == [
        value for value in found["done"] for _ in range(1 + value % 200)
    ]
    for value in set(rows) - set(found["done"]):
        assert rows.count(value) == 1 + value % 200
    broker.close()


def test_a_torn_log_of_the_ledger_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    broker = opened(source, config=Config())
    broker.create(J, SCHEMA)
    log = source / f"{LEDGER}-wal"
    sizes, marks = [], []
    for value in range(12):
        publish(broker, {J: column([value])}, ("g", J, value, value - 1 if value else None))
        sizes.append(log.stat().st_size)
        marks.append((source / MARK).read_bytes())
    # As a power cut leaves it: the broker still has it open.
    image = tmp_path / "image"
    shutil.copytree(source, image)
    broker.close()
    whole = (image / log.name).read_bytes()
    for count in (4, 8, 11):
        for torn in (b"", whole[sizes[count] :][:5000], b"\0" * 9000, b"\xff" * 100):
            copy = tmp_path / "copy"
            shutil.copytree(image, copy)
            (copy / log.name).write_bytes(whole[: sizes[count]] + torn[:5000])
            (copy / f"{LEDGER}-shm").unlink()
            for place in PLACES:
                (copy / place).write_bytes(marks[count])
            again = opened(copy, config=Config())
            rows = read_all(again, J)
            assert rows == list(range(len(rows)))
            assert len(rows) >= count + 1
            assert again.committed("g", J) == len(rows) - 1
            assert again.append(J, column([99])).first_offset == len(rows)
            again.close()
            shutil.rmtree(copy)


def test_an_interrupt_while_saving_stops_the_broker_and_the_next_one_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    broker.append(J, column([1]))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker._disk, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        broker.append(J, column([2]))
    monkeypatch.undo()
    with pytest.raises(BrokerStopped, match="interrupted"):
        broker.append(J, column([3]))
    assert read_all(broker, J) == [1]
    broker.close()
    broker = opened(tmp_path)
    assert read_all(broker, J) == [1]
    broker.close()


def test_a_truncation_that_was_saved_is_answered_though_its_room_cannot_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    broker.append(J, column([1, 2, 3]))
    broker._ledger._start.reserve.release()  # type: ignore[attr-defined] # As on a full disk.

    def fails(_self: object) -> None:
        raise StorageError("reading the ledger failed: Input/output error")

    monkeypatch.setattr(SqliteLedger, "_shrink", fails)
    assert broker.truncate_before(J, 2).removed == 2

    broker.append(J, column([4]))
    assert read_all(broker, J) == [3, 4]
    broker.close()
    assert read_all(opened(tmp_path), J) == [3, 4]
