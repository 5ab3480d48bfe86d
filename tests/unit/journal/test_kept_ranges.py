"""Ranges that are taken in parts are read and checked once, as far as there is room."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from tests.unit.journal.journal_kit import SCHEMA, column, values

from millrace.config import Config
from millrace.errors import Corrupt, OffsetOutOfRange
from millrace.journal.block_memory import BlockMemory
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger import table_reader
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InSegment
from millrace.journal.embedded.ledger.table_reader import TableReader
from millrace.journal.embedded.segment_disk import LocalDisk
from millrace.journal.kept_ranges import KeptRanges

ROWS = [pa.record_batch({"x": [1]})]
NAMES = [f"j/{number}" for number in range(5)]


def filled(folder: Path, config: Config) -> EmbeddedBroker:
    """Journals with one large range each, in files."""
    broker = EmbeddedBroker.open(str(folder), config)
    broker.create_many(NAMES, SCHEMA)
    for name in NAMES:
        broker.append(name, column(range(10_000)))
    broker.tidy()
    return broker


def read_in_parts(broker: EmbeddedBroker) -> dict[str, list[int]]:
    at, found = dict.fromkeys(NAMES, 0), {name: [] for name in NAMES}  # type: ignore[var-annotated]
    while some := broker.read_many(
        ReadRequest(offsets=at, isolation="raw", bytes_each_max=100_000)
    ):
        for name, each in some.items():
            found[name] += values(each)
            at[name] = each.next_offset
    return found


@pytest.mark.parametrize(("kept_bytes", "reads_each"), [(2**28, 1), (1, 5)])
def test_a_range_that_is_kept_is_read_once(
    kept_bytes: int, reads_each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(tmp_path, Config(journal_kept_bytes_max=kept_bytes))
    reads: list[str] = []
    read = LocalDisk.read

    def counted(
        self: LocalDisk, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        reads.append(path)
        return read(self, path, position, length, memory=memory)

    monkeypatch.setattr(LocalDisk, "read", counted)
    assert read_in_parts(broker) == {name: list(range(10_000)) for name in NAMES}
    assert len(reads) == reads_each * len(NAMES)
    assert broker._kept.nbytes == 0, "every range was taken to its end"
    broker.close()


def test_the_ledger_is_asked_for_a_range_once_and_not_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(tmp_path, Config(journal_kept_bytes_max=1))
    asked: list[JournalId] = []
    ranges_of = TableReader.ranges_of

    def counted(
        self: TableReader, spans: Sequence[tuple[JournalId, Offset, Offset]]
    ) -> Generator[AppendRange]:
        asked.extend(journal for journal, _, _ in spans)
        return ranges_of(self, spans)

    monkeypatch.setattr(TableReader, "ranges_of", counted)
    assert read_in_parts(broker) == {name: list(range(10_000)) for name in NAMES}
    assert len(asked) == len(set(asked)) == len(NAMES)
    broker.close()


def test_a_range_that_was_merged_while_a_reader_is_inside_is_looked_up_again(
    tmp_path: Path,
) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), Config(journal_kept_bytes_max=1))
    broker.create("j", SCHEMA)
    for first in range(0, 10_000, 1_000):
        broker.append("j", column(range(first, first + 1_000)))
        broker.tidy()
    begun = broker.read_many(ReadRequest(offsets={"j": 0}, isolation="raw", bytes_each_max=10_000))[
        "j"
    ]
    assert 0 < begun.next_offset < 1_000, "inside the first range"
    (range_,) = broker._partly._ranges.values()
    assert isinstance(range_.where, InSegment)
    # Its file goes, as when it was merged into another one.
    moved = replace(range_, where=replace(range_.where, file="segments/gone"))
    broker._partly.note(moved, begun.next_offset)
    at, found = begun.next_offset, values(begun)
    while some := broker.read_many(
        ReadRequest(offsets={"j": at}, isolation="raw", bytes_each_max=10_000)
    ):
        found += values(some["j"])
        at = some["j"].next_offset
    assert found == list(range(10_000))
    broker.close()


def test_truncated_rows_are_not_read_by_what_is_remembered(tmp_path: Path) -> None:
    broker = filled(tmp_path, Config())
    some = broker.read_many(
        ReadRequest(offsets=dict.fromkeys(NAMES, 0), isolation="raw", bytes_each_max=10_000)
    )
    at = {name: each.next_offset for name, each in some.items()}
    broker.truncate_before(NAMES[0], 9_000, force=True)
    with pytest.raises(OffsetOutOfRange):
        broker.read_many(ReadRequest(offsets=at, isolation="raw", bytes_each_max=10_000))
    broker.delete(NAMES[1])
    broker.create(NAMES[1], SCHEMA)
    broker.append(NAMES[1], column([7]))
    assert values(
        broker.read_many(ReadRequest(offsets={NAMES[1]: 0}, isolation="raw"))[NAMES[1]]
    ) == [7]
    broker.close()


def test_bytes_that_went_bad_are_not_kept(tmp_path: Path) -> None:
    broker = filled(tmp_path, Config())
    file = max(tmp_path.glob("segments/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for _ in range(2):
        with pytest.raises(Corrupt, match="are not the bytes that were written"):
            read_in_parts(broker)
    broker.close()


def test_what_is_kept_stays_below_the_limit_and_is_not_driven_out_by_what_comes_round() -> None:
    kept = KeptRanges[Sequence[pa.RecordBatch]](10)
    assert [kept.keep(key, ROWS, 4) for key in "abc"] == [True, True, False]
    for _ in range(3):
        assert [kept.get(key, is_last=False) is not None for key in "abc"] == [True, True, False]
        assert not kept.keep("c", ROWS, 4)
    assert kept.nbytes == 8
    assert kept.get("a", is_last=True) is not None
    assert kept.get("a", is_last=True) is None
    assert kept.keep("c", ROWS, 4)
    assert not kept.keep("d", ROWS, 11)
    kept.clear()
    assert (kept.nbytes, kept.get("c", is_last=False)) == (0, None)


def test_a_range_that_no_reader_comes_back_for_goes_in_the_end() -> None:
    kept = KeptRanges[Sequence[pa.RecordBatch]](10)
    assert kept.keep("left", ROWS, 10)
    while not kept.keep("new", ROWS, 10):
        assert kept.get("new", is_last=False) is None
    assert kept.get("left", is_last=False) is None
    assert kept.nbytes == 10


def test_ranges_are_looked_up_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), Config())
    broker.create_many(NAMES, SCHEMA)
    for value in range(7):
        for name in NAMES:
            broker.append(name, column([value]))
    for page in (1, 2, 3, 7, 35, 36):
        monkeypatch.setattr(table_reader, "_PAGE_RANGES", page)
        monkeypatch.setattr(table_reader, "_GROUP_BYTES_MAX", 500 * page)
        found = broker.read_many(ReadRequest(offsets=dict.fromkeys(NAMES, 2), isolation="raw"))
        assert list(found) == NAMES
        assert [values(each) for each in found.values()] == [[2, 3, 4, 5, 6]] * len(NAMES)
    broker.close()
