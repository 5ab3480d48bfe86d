from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lacking import lacking

from millrace.keys import (
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    compiled_kernels,
    hash32,
    sample_bounds,
    split,
    split_stream,
)


def _decimals(digits: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**digits, 10**digits - 1).map(Decimal)


TYPES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.integers(-(2**55), 2**55),
    pa.timestamp("ms", "UTC"): st.integers(-(2**40), 2**40),
    pa.decimal64(18, 0): _decimals(18),
    pa.decimal128(18, 0): _decimals(18),
    pa.decimal128(38, 0): _decimals(38),
    pa.decimal256(50, 0): _decimals(50),
    pa.string(): st.text(max_size=40),
    pa.large_string(): st.text(max_size=8),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=70),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.null(): st.none(),
}


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pa.Array:
    """A column of `rows` rows, few distinct values, some null, cut out of a longer one."""
    kind = draw(st.sampled_from(list(TYPES)))
    pool = draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=12))
    picks = draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))
    before = draw(st.integers(0, 9))
    return pa.array([None] * before + picks, kind).slice(before)


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch with one to three key columns and the row's number."""
    rows = draw(st.integers(0, 150))
    keys = draw(st.lists(columns(rows), min_size=1, max_size=3))
    numbers = pa.array(range(rows), pa.int64())
    return pa.RecordBatch.from_arrays([*keys, numbers], [*(f"k{i}" for i in range(len(keys))), "n"])


def keys_of(batch: pa.RecordBatch) -> list[str]:
    """The names of the key columns."""
    return [name for name in batch.schema.names if name != "n"]


def cut(batch: pa.RecordBatch, places: list[int]) -> list[pa.RecordBatch]:
    """The batch in pieces, cut at some places."""
    ends = sorted({min(place, batch.num_rows) for place in places} | {0, batch.num_rows})
    return [batch.slice(a, b - a) for a, b in pairwise(ends)]


# The first text of a fresh checkout takes a second: Hypothesis builds its table of characters.
laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
places = st.lists(st.integers(0, 150), max_size=5)
counts = st.sampled_from([1, 2, 7, 200, 300, 65_536])


@contextmanager
def without_native() -> Iterator[None]:
    os.environ["MILLRACE_NATIVE"] = "0"
    try:
        yield
    finally:
        del os.environ["MILLRACE_NATIVE"]


def partitioners(batch: pa.RecordBatch, count: int) -> list[Partitioner]:
    keys = keys_of(batch)
    ranges = RangePartitioner(keys, sample_bounds(batch, keys, min(count, 20)))
    return [HashPartitioner(keys, count), RoundRobinPartitioner(count), ranges]


@laws
@given(tables())
def test_compiled_and_numpy_kernels_agree(batch: pa.RecordBatch) -> None:
    if not compiled_kernels.available():
        lacking("kernels", "the kernels are not compiled here")
    compiled = hash32(batch, keys_of(batch))
    with without_native():
        assert hash32(batch, keys_of(batch)).equals(compiled)


@laws
@given(tables(), places)
def test_the_hash_depends_on_values_alone(batch: pa.RecordBatch, at: list[int]) -> None:
    keys = keys_of(batch)
    hashed = hash32(batch, keys)
    pieces = cut(batch, at)
    assert hash32(pa.Table.from_batches(pieces, batch.schema), keys).equals(hashed)
    for piece, end in zip(pieces, np.cumsum([piece.num_rows for piece in pieces]), strict=True):
        expected = hashed.slice(int(end) - piece.num_rows, piece.num_rows)
        assert hash32(piece, keys).to_pylist() == expected.to_pylist()


@laws
@given(tables())
def test_a_dictionary_does_not_change_the_hash(batch: pa.RecordBatch) -> None:
    keys = keys_of(batch)
    backwards = pa.array(range(batch.num_rows - 1, -1, -1), pa.int32())
    encoded = [pa.DictionaryArray.from_arrays(backwards, batch[key]) for key in keys]
    hashed = hash32(pa.table(encoded, keys), keys).to_pylist()
    assert hashed[::-1] == hash32(batch, keys).to_pylist()


@laws
@given(tables(), counts)
def test_a_split_has_every_row_once_and_in_order(batch: pa.RecordBatch, count: int) -> None:
    for partitioner in partitioners(batch, count):
        done = split(batch, partitioner, 0)
        ids = partitioner.ids(batch, 0)
        assert done.partitions == partitioner.partitions
        assert done.offsets[-1] == batch.num_rows
        for partition in set(ids.tolist()):
            expected = np.flatnonzero(ids == partition)
            assert done.part(partition)["n"].to_pylist() == expected.tolist()
        with without_native():
            assert split(batch, partitioner, 0).offsets.tolist() == done.offsets.tolist()


@laws
@given(tables(), counts, places, st.integers(1, 4000))
def test_cutting_a_stream_elsewhere_sends_no_row_elsewhere(
    batch: pa.RecordBatch, count: int, at: list[int], gather_bytes: int
) -> None:
    for partitioner in partitioners(batch, count):
        whole = split(batch, partitioner, 0)
        found: dict[int, list[int]] = {}
        for done in split_stream(cut(batch, at), partitioner, gather_bytes):
            for partition in np.flatnonzero(np.diff(done.offsets)).tolist():
                found.setdefault(partition, []).extend(done.part(partition)["n"].to_pylist())
        used = np.flatnonzero(np.diff(whole.offsets)).tolist()
        assert found == {partition: whole.part(partition)["n"].to_pylist() for partition in used}


@laws
@given(tables(), st.integers(1, 9))
def test_ranges_ascend_and_keep_equal_keys_together(batch: pa.RecordBatch, count: int) -> None:
    keys = keys_of(batch)
    bounds = sample_bounds(batch, keys, count)
    ids = RangePartitioner(keys, bounds).ids(batch, 0)
    assert len(bounds) < count
    rows = [spark_order(row, keys) for row in batch.to_pylist()]
    limits = [spark_order(row, keys) for row in bounds.to_pylist()]
    assert ids.tolist() == [sum(limit < row for limit in limits) for row in rows]


def spark_order(row: dict[str, object], keys: list[str]) -> list[tuple[object, ...]]:
    return [_place(row[key]) for key in keys]


def _place(value: object) -> tuple[object, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)
