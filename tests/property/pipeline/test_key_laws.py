"""Idempotency keys: the same row asked again has the same key, and nothing else ever has it."""

from __future__ import annotations

import datetime as dt
import string
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.pipeline.core.hop_rows import HopRows, asker_of, batch_key, row_keys

NAMES = st.text(max_size=6)
ASKERS = st.tuples(NAMES, NAMES, NAMES, NAMES)
VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.decimal128(12, 3): st.decimals(-99999, 99999, places=3).map(Decimal),
    pa.list_(pa.int32()): st.lists(st.integers(-9, 9), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.integers(-9, 9), "b": st.text(max_size=3)}
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> HopRows:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    count = draw(st.integers(1, 8))
    columns = [
        pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"c{n}" for n in range(len(kinds))])
    offsets = sorted(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    return HopRows(batch, np.array(offsets, np.int64))


def keys_of(rows: HopRows, asker: bytes = b"a", journal_id: int = 1) -> tuple[str, ...]:
    return row_keys(asker, journal_id, rows, 0, len(rows))


@given(tables(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_row_has_one_key_however_its_neighbours_are_cut(
    rows: HopRows, data: st.DataObject
) -> None:
    keys = keys_of(rows)

    assert len(set(keys)) == len(rows), "rows that are equal lie at different places"
    assert all(len(key) == 40 and set(key) <= set(string.hexdigits.lower()) for key in keys)
    begin = data.draw(st.integers(0, len(rows) - 1))
    assert row_keys(b"a", 1, rows, begin, begin + 1) == keys[begin : begin + 1]
    # A worker cuts pieces between input rows: those of one offset stay together.
    first = int(np.searchsorted(rows.offsets, rows.offsets[begin]))
    piece = rows.slice(first, len(rows))
    copied = pa.RecordBatch.from_pylist(piece.batch.to_pylist(), piece.batch.schema)
    assert keys_of(HopRows(copied, piece.offsets)) == keys[first:]


@given(tables(), tables())
@settings(max_examples=examples(200), deadline=None)
def test_other_content_at_the_same_place_has_another_key(one: HopRows, other: HopRows) -> None:
    count = min(len(one), len(other))
    offsets = np.arange(count)
    mine, theirs = (HopRows(each.batch.slice(0, count), offsets) for each in (one, other))

    for place, (key, second) in enumerate(zip(keys_of(mine), keys_of(theirs), strict=True)):
        rows = [each.batch.slice(place, 1) for each in (mine, theirs)]
        same = rows[0].schema == rows[1].schema and repr(rows[0].to_pylist()) == repr(
            rows[1].to_pylist()
        )
        assert (key == second) == same


@given(ASKERS, ASKERS, tables())
@settings(max_examples=examples(200), deadline=None)
def test_another_workspace_job_step_or_function_has_other_keys(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str], rows: HopRows
) -> None:
    assume(one != other)

    assert not set(keys_of(rows, asker_of(*one))) & set(keys_of(rows, asker_of(*other)))


@given(tables(), st.integers(1, 5), st.integers(6, 9))
@settings(max_examples=examples(50), deadline=None)
def test_another_journal_or_place_has_other_keys(rows: HopRows, one: int, other: int) -> None:
    moved = HopRows(rows.batch, rows.offsets + 10)

    assert not set(keys_of(rows, journal_id=one)) & set(keys_of(rows, journal_id=other))
    assert not set(keys_of(rows)) & set(keys_of(moved))


@given(st.lists(st.text("0123456789abcdef", min_size=40, max_size=40), min_size=2, max_size=4))
@settings(max_examples=examples(50), deadline=None)
def test_a_batch_has_a_key_of_its_own_that_names_all_its_rows(keys: list[str]) -> None:
    assert len(batch_key(keys)) == 40
    assert batch_key(keys) not in {batch_key(keys[:1]), batch_key(keys[:-1]), batch_key(keys[1:])}
