"""A log of decisions: who may add to it, what opening it notices, and what is in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import SCHEMA, column, open_log, read_all

from millrace.config import Config
from millrace.errors import (
    BrokerStopped,
    Corrupt,
    DataLost,
    FormatError,
    OwnerReplaced,
    S3Unreachable,
)
from millrace.journal.ledger_log import log_records
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.log_ledger import LogLedger
from millrace.journal.ledger_log.log_records import LogRecord
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.storage.local import LocalStore

SMALL = Config(ledger_snapshot_records=5)


def filled(folder: Path, config: Config = SMALL) -> LogBroker:
    broker = open_log(folder, config)
    broker.create("a", SCHEMA)
    for value in range(30):
        broker.append("a", column([value]))
    return broker


def records(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "j/log").iterdir())


def test_an_owner_that_slept_over_snapshots_and_trims_is_still_fenced(tmp_path: Path) -> None:
    sleeper = filled(tmp_path)
    for epoch in range(2, 5):
        following = open_log(tmp_path, SMALL)
        assert following.epoch == epoch
        for value in range(20):
            following.append("a", column([100 * epoch + value]))
        following._log_ledger.make_snapshot()
        following._log_ledger.make_snapshot()
        following.close()
    before = read_all(open_log(tmp_path, SMALL), "a")
    assert len(records(tmp_path)) < 60, "nothing was trimmed"

    with pytest.raises(OwnerReplaced, match="nothing of the last requests was saved"):
        sleeper.append("a", column([99]))

    assert read_all(open_log(tmp_path, SMALL), "a") == before


def test_a_record_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    store = broker._store
    create, lost = LocalStore.create, []

    def twice(self: LocalStore, relative: str, data: bytes, **given: object) -> bool:
        create(self, relative, data, **given)  # type: ignore[arg-type]
        lost.append(relative)
        return create(self, relative, data, **given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "create", twice)
        broker.append("a", column([30]))

    assert lost
    assert store is broker._store
    assert read_all(open_log(tmp_path, SMALL), "a") == list(range(31))


def test_a_record_that_was_made_and_trimmed_meanwhile_is_in_doubt(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    create = LocalStore.create

    def made_and_gone(self: LocalStore, relative: str, data: bytes, **given: object) -> bool:
        create(self, relative, data, **given)  # type: ignore[arg-type]
        self.remove_file(relative)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "create", made_and_gone)
        with pytest.raises(BrokerStopped, match="is not known") as raised:
            broker.append("a", column([30]))

    assert not isinstance(raised.value, OwnerReplaced), "the caller would write it again"


def test_a_missing_and_a_damaged_record_are_noticed(tmp_path: Path) -> None:
    filled(tmp_path, Config()).close()
    path = tmp_path / "j/log" / f"{17:020d}"
    whole = path.read_bytes()

    path.unlink()
    with pytest.raises(DataLost, match="record 17 .* is missing"):
        open_log(tmp_path, SMALL)
    path.write_bytes(whole[:-9] + b"\0" + whole[-8:])
    with pytest.raises(DataLost, match="record 17 .* is damaged"):
        open_log(tmp_path, SMALL)
    path.write_bytes(whole)
    assert read_all(open_log(tmp_path, SMALL), "a") == list(range(30))


def test_a_log_that_ends_too_early_is_refused_or_gone_on_with_by_order(tmp_path: Path) -> None:
    filled(tmp_path).close()
    store = LocalStore(str(tmp_path))

    def opened(**given: object) -> LogBroker:
        log = StoreLog(store, "j", SMALL)
        return LogBroker.open_log(store, "j", log, SMALL, known_end=50, **given)  # type: ignore[arg-type]

    with pytest.raises(DataLost, match="commits of the journals .* are missing"):
        opened()
    reading = opened(accept_loss="read_only")
    assert read_all(reading, "a") == list(range(30))
    with pytest.raises(DataLost):
        reading.append("a", column([1]))
    going_on = opened(accept_loss=True)
    going_on.append("a", column([30]))
    assert going_on.last_number > 50
    assert read_all(open_log(tmp_path, SMALL), "a") == list(range(31))


def test_a_damaged_snapshot_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker._log_ledger.make_snapshot()
    broker.append("a", column([30]))
    broker._log_ledger.make_snapshot()
    broker.close()
    newest = max((tmp_path / "j/snapshots").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])

    assert read_all(open_log(tmp_path, SMALL), "a") == list(range(31))


def test_records_of_another_version_and_cut_ones_are_no_records() -> None:
    record = LogRecord(number=1, epoch=1, mark="m", at_ms=0, tables=1)
    data = log_records.encode_record(record)

    assert log_records.decode_record(data, where="here") == record
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            log_records.decode_record(data[:end], where="here")
    with pytest.raises(FormatError, match="newer Millrace"):
        log_records.decode_record(data[:4] + b"\x09" + data[5:], where="here")
    newer = LogRecord(number=1, epoch=1, mark="m", at_ms=0, tables=99)
    with pytest.raises(FormatError, match="version 99"):
        log_records.decode_record(log_records.encode_record(newer), where="here")


def test_files_that_cannot_be_removed_cost_neither_the_truncation_nor_others(
    tmp_path: Path,
) -> None:
    config = SMALL.with_options(journal_small_bytes_max=1)  # Every append is a file.
    broker = open_log(tmp_path, config)
    broker.create("a", SCHEMA)
    for value in range(6):
        broker.append("a", column([value]))
    files = set(tmp_path.glob("j/segments/*/*"))

    def away(_path: str) -> None:
        raise S3Unreachable("removing failed: no answer\n  to fix: ask again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker._disk, "remove", away)
        truncated = broker.truncate_before("a", 4)
        broker.append("a", column([6]))
        with pytest.raises(S3Unreachable):
            broker.tidy()
    assert (truncated.removed, truncated.start_offset) == (4, 4)
    assert read_all(broker, "a") == [4, 5, 6]
    assert files <= set(tmp_path.glob("j/segments/*/*")), "nothing could be removed"
    broker.tidy()
    assert len(files & set(tmp_path.glob("j/segments/*/*"))) == 2

    after = open_log(tmp_path, config)
    assert read_all(after, "a") == [4, 5, 6]
    after.append("a", column([7]))
    assert read_all(open_log(tmp_path, config), "a") == [4, 5, 6, 7]


def test_what_is_saved_is_answered_though_what_is_due_afterwards_fails(tmp_path: Path) -> None:
    broker = filled(tmp_path)

    def fails(_self: object) -> None:
        raise Corrupt("a range is damaged\n  to fix: restore it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogLedger, "snapshot_if_due", fails)
        assert broker.append("a", column([30])).first_offset == 30

    assert read_all(broker, "a") == read_all(open_log(tmp_path, SMALL), "a") == list(range(31))
