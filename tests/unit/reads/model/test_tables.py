"""Tables of numbers, and their bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import DataLost
from millrace.reads.model.number_tables import pack, unpack
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads

HIGH = 2**64 - 1


def test_rows_come_back_as_they_were_given() -> None:
    rows: list[tuple[int, ...]] = [(1, 2, HIGH, 3), (4, 5, 0, -1)]

    assert Points.of(rows).rows() == rows
    assert Points.empty().rows() == []
    assert len(Points.of(rows)) == 2


def test_parts_are_laid_end_to_end_and_picked_by_place_or_mask() -> None:
    one, two = Reads.of([(1, 10), (2, 20)]), Reads.of([(3, 30)])
    together = Reads.concat([one, Reads.empty(), two])

    assert together.rows() == [(1, 10), (2, 20), (3, 30)]
    assert together.take(np.array([2, 0])).rows() == [(3, 30), (1, 10)]
    assert together.take(np.array([False, True, False])).rows() == [(2, 20)]
    assert Reads.concat([]).rows() == []


def test_tables_travel_as_bytes_in_order() -> None:
    tables = [Points.of([(1, 2, HIGH, 3)]), Hints.empty(), Opens.of([(7, 8, -1)])]

    found = unpack(pack(list(tables)), [Points, Hints, Opens])

    assert [type(table) for table in found] == [Points, Hints, Opens]
    assert [table.rows() for table in found] == [table.rows() for table in tables]


def test_columns_of_another_length_or_type_are_no_table() -> None:
    with pytest.raises(AssertionError):
        Reads(np.zeros(1, np.int64), np.zeros(2, np.int64))
    with pytest.raises(AssertionError):
        Reads(np.zeros(1, np.int64), np.zeros(1, np.int32))


@pytest.mark.parametrize("content", [b"", b"nonsense", pack([Reads.of([(1, 2)])])[:-20]])
def test_bytes_that_are_no_tables_are_data_lost(content: bytes) -> None:
    with pytest.raises(DataLost):
        unpack(content, [Reads, Reads])


def test_tables_of_another_kind_are_named() -> None:
    with pytest.raises(DataLost, match="Points has no column producer of int64"):
        unpack(pack([Reads.of([(1, 2)])]), [Points])
    short = pa.RecordBatch.from_pydict({"tag": pa.array([1, 2]), "offset": pa.array([1, None])})
    with pytest.raises(DataLost, match="Reads has nulls in its column offset"):
        Reads.from_batch(short)
