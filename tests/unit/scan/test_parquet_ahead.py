"""Column chunks of Parquet that are fetched before Arrow asks; the oracle is pyarrow alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.scan import parquet_ahead
from millrace.scan.parquet_ahead import ChunkFile, ParquetInput, parquet_of, planned
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.remote_paths import FileRanges

ROWS = 400
COLUMNS = ("a", "text", "list", "part")


def data_of(group_rows: int, seed: int = 0) -> bytes:
    dice = random.Random(seed)  # noqa: S311 - the same file each time
    table = pa.table(
        {
            "a": range(ROWS),
            "text": [None if dice.random() < 0.1 else f"{dice.random()}" * 3 for _ in range(ROWS)],
            "list": [[n, n + 1][: n % 3] for n in range(ROWS)],
            "part": [{"x": n % 7, "y": str(n)} for n in range(ROWS)],
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group_rows)
    return bytes(sink.getvalue())


class Bucket:
    """A file in memory, of which each request is remembered; it can be silent."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.changed = threading.Condition()
        self.asked: list[tuple[int, int]] = []

    def load(self, position: int, size: int) -> bytes:
        with self.changed:
            self.asked.append((position, size))
            self.changed.notify_all()
        return self.data[position : position + size]

    def open(self, bytes_max: int = 1 << 20) -> ParquetInput:
        chunks = ChunkFile("s3://b/a.parquet", FileRanges(len(self.data), self.load), bytes_max)
        file = parquet_of(chunks)
        self.asked.clear()  # Those of the footer.
        return ParquetInput(file, chunks)


def rows_of(
    opened: ParquetInput, groups: Sequence[int], columns: Sequence[str] | None, batch_rows: int
) -> pa.Table:
    opened.fetch(groups, columns)
    found = opened.file.iter_batches(
        batch_size=batch_rows, row_groups=list(groups), columns=columns, use_threads=False
    )
    schema = opened.file.schema_arrow
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(found, chosen)


@settings(deadline=None, max_examples=examples(40))
@given(
    group_rows=st.integers(20, ROWS),
    columns=st.none() | st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1),
    data=st.data(),
    batch_rows=st.integers(1, ROWS),
    request_bytes=st.integers(100, 20_000),
    bytes_max=st.integers(200, 100_000),
    gap=st.sampled_from([0, 500]),
)
def test_rows_are_those_of_the_file_and_no_needed_byte_is_asked_for_twice(
    group_rows: int,
    columns: list[str] | None,
    data: st.DataObject,
    batch_rows: int,
    request_bytes: int,
    bytes_max: int,
    gap: int,
) -> None:
    content = data_of(group_rows)
    whole = pq.ParquetFile(pa.BufferReader(content))
    groups = data.draw(st.lists(st.integers(0, whole.num_row_groups - 1), unique=True, min_size=1))
    bucket = Bucket(content)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parquet_ahead, "REQUEST_BYTES", request_bytes)
        patched.setattr(parquet_ahead, "GAP_BYTES", gap)

        opened = bucket.open(bytes_max)
        found = rows_of(opened, groups, columns, batch_rows)
        plan = planned(opened.file.metadata, groups, columns)

    assert found.equals(whole.read_row_groups(groups, columns))
    assert set(bucket.asked) == {(one.position, one.bytes) for one in plan}
    if bytes_max >= 2 * len(content):
        assert len(bucket.asked) == len(plan)


def test_the_next_row_group_is_asked_for_while_the_first_one_is_decoded() -> None:
    bucket = Bucket(data_of(100))
    opened = bucket.open()
    opened.fetch(range(4), None)
    groups = [one.position for one in planned(opened.file.metadata, range(4), None)]

    next(opened.file.iter_batches(batch_size=10, row_groups=list(range(4)), use_threads=False))

    with bucket.changed:
        assert bucket.changed.wait_for(
            lambda: set(groups[:2]) <= {position for position, _ in bucket.asked}, timeout=60
        )
        assert groups[3] not in {position for position, _ in bucket.asked}


def test_columns_that_lie_together_are_one_request_and_others_are_left_out() -> None:
    bucket = Bucket(data_of(100))
    together = bucket.open()
    rows_of(together, range(4), None, 50)
    assert len(bucket.asked) == 4

    few = bucket.open()
    rows_of(few, range(4), ["a"], 50)
    assert len(bucket.asked) == 4
    assert sum(size for _, size in bucket.asked) < len(bucket.data) / 4


def test_no_more_is_held_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    take = FetchedAhead.take

    def watched(self: FetchedAhead, piece: Piece) -> bytes:
        held.append(self.nbytes)
        return take(self, piece)

    monkeypatch.setattr(FetchedAhead, "take", watched)
    bucket = Bucket(data_of(20))
    limit = len(bucket.data) // 5

    rows_of(bucket.open(limit), range(20), None, 7)

    assert limit / 2 < max(held) <= limit


def test_a_file_that_became_shorter_is_an_error_of_that_file() -> None:
    bucket = Bucket(data_of(100))
    opened = bucket.open()
    bucket.data = bucket.data[: len(bucket.data) // 2]

    with pytest.raises(FileNotFoundError, match="a.parquet was removed or replaced"):
        rows_of(opened, range(4), None, 50)
