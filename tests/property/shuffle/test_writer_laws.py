"""Laws of writing and reading, for any rows, partitioner, and cut."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.shuffle.shuffle_kit import column, read_all, to_partition, write

from millrace.config import Config
from millrace.ids import AttemptId
from millrace.keys import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RoundRobinPartitioner,
)
from millrace.shuffle import payload, reader
from millrace.shuffle.index import MapTaskIndex
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.date32(): st.dates(),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=5), max_size=4),
    pa.struct([("a", pa.int8()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(-9, 9), "b": st.none() | st.text(max_size=3)}
    ),
    pa.dictionary(pa.int16(), pa.string()): st.sampled_from(["", "red", "blue"]),
    pa.string_view(): st.text(max_size=30),
    pa.null(): st.none(),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Any columns, an integer key `x` and the row's number among them."""
    rows = draw(st.integers(0, 60))
    columns: dict[str, pa.Array] = {
        "x": pa.array(
            draw(st.lists(st.none() | st.integers(-5, 5), min_size=rows, max_size=rows)), pa.int64()
        ),
        "row": pa.array(range(rows), pa.int64()),
    }
    for number, kind in enumerate(draw(st.lists(st.sampled_from(list(KINDS)), max_size=4))):
        values = st.lists(st.none() | KINDS[kind], min_size=rows, max_size=rows)
        columns[f"c{number}"] = pa.array(draw(values), kind)
    return pa.table(columns)


@st.composite
def partitioners(draw: st.DrawFn) -> Partitioner:
    count = draw(st.integers(1, 12) | st.sampled_from([64, 65, 300]))
    match draw(st.sampled_from(["hash", "range", "round robin", "broadcast", "custom"])):
        case "hash":
            return HashPartitioner("x", count)
        case "range":
            bounds = draw(st.lists(st.integers(-5, 5), unique=True, max_size=6).map(sorted))
            return RangePartitioner("x", bounds)
        case "round robin":
            return RoundRobinPartitioner(count)
        case "broadcast":
            return BroadcastPartitioner(min(count, 12))
        case _:
            return CustomPartitioner(
                lambda batch: (batch["row"].to_numpy() % count).astype(np.int64), count
            )


@contextmanager
def workspace() -> Iterator[LocalStore]:
    with tempfile.TemporaryDirectory() as root:
        yield LocalStore(root)


def cut(table: pa.Table, places: list[int]) -> list[pa.RecordBatch]:
    """The same rows in other batches, empty ones among them."""
    ends = sorted(min(place, table.num_rows) for place in places)
    pieces = zip([0, *ends], [*ends, table.num_rows], strict=True)
    batches: list[pa.RecordBatch] = []
    for begin, end in pieces:
        piece = table.slice(begin, end - begin).combine_chunks()
        batches += piece.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return batches


@LAW
@given(
    tables(),
    partitioners(),
    st.lists(st.integers(0, 60), max_size=6),
    st.sampled_from([4 * 1024, 64 * 1024, 1024**2]),
    st.sampled_from(["none", "lz4", "zstd"]),
)
def test_each_row_is_where_the_partitioner_puts_it_in_input_order(
    table: pa.Table, by: Partitioner, places: list[int], memory: int, compression: str
) -> None:
    limits = {"task_memory_bytes_max": memory, "compression": compression}
    with workspace() as store:
        pieces = cut(table, places)
        index = write(
            store,
            ATTEMPT,
            pieces,
            schema=table.schema,
            by=by,
            config=Config().with_options(**limits),
        )
        found = read_all(store, index)
        assert [meta.rows for meta in index.partitions] == [len(rows) for rows in found]

    rows = table.to_pylist()
    if isinstance(by, BroadcastPartitioner):
        assert found == [rows] * by.partitions
    elif table.num_rows:
        ids = by.ids(table.combine_chunks().to_batches()[0], 0).tolist()
        expected: list[list[dict[str, Any]]] = [[] for _ in range(by.partitions)]
        for row, partition in zip(rows, ids, strict=True):
            expected[partition].append(row)
        assert found == expected


@LAW
@given(st.integers(0, 3000), st.integers(1, 4000), st.data())
def test_any_chunk_size_and_start_give_the_same_bytes(
    rows: int, chunk_bytes: int, data: st.DataObject
) -> None:
    with workspace() as store:
        index = write(store, ATTEMPT, column(range(rows)), by=to_partition(1, 3))
        for meta in index.partitions:
            whole = reader.map_partition(store, ATTEMPT, meta).to_pybytes()
            start = data.draw(st.integers(0, meta.bytes))
            chunks = list(
                reader.fetch_chunks(store, ATTEMPT, meta, chunk_bytes=chunk_bytes, start=start)
            )
            assert b"".join(chunk.to_pybytes() for chunk in chunks) == whole[start:]
            assert len(chunks) == math.ceil((meta.bytes - start) / chunk_bytes)


@LAW
@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(1, 40))
def test_a_partition_s_rows_do_not_depend_on_how_much_was_held(
    sizes: list[int], batch_rows_min: int
) -> None:
    """Slices of any sizes, under a limit that spills them at every turn, come back in order."""
    schema = pa.schema([("x", pa.int64())])
    starts = np.cumsum([0, *sizes])
    batches = [
        pa.record_batch({"x": np.arange(begin, begin + size)})
        for begin, size in zip(starts, sizes, strict=False)
    ]
    by = CustomPartitioner(lambda batch: (batch["x"].to_numpy() % 3).astype(np.int64), 3)
    total = int(starts[-1])
    expected = [list(range(remainder, total, 3)) for remainder in range(3)]

    with workspace() as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "BATCH_ROWS_MIN", batch_rows_min)
        index: MapTaskIndex = write(
            store,
            ATTEMPT,
            batches,
            schema=schema,
            by=by,
            config=Config(task_memory_bytes_max=2048),
        )
        assert [[row["x"] for row in part] for part in read_all(store, index)] == expected
        for meta in index.partitions:
            assert meta.batches <= max(1, meta.rows // batch_rows_min)
