from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import UnsupportedType, UserError
from millrace.keys import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    partition_ids,
    sample_bounds,
)

NAN = float("nan")


def batch(**columns: object) -> pa.RecordBatch:
    return pa.record_batch(columns)


def placed(partitioner: Partitioner, **columns: object) -> list[int]:
    ids = partitioner.ids(batch(**columns), 0)
    assert ids.dtype == np.uint16
    return list(ids.tolist())


def by_amount(rows: pa.RecordBatch) -> pa.Array:
    return rows["amount"]


ALL: list[Partitioner] = [
    HashPartitioner(["a", "b"], 7),
    RangePartitioner("a", [1, 5]),
    RoundRobinPartitioner(3),
    BroadcastPartitioner(2),
    CustomPartitioner(by_amount, 4, version=2),
]


@pytest.mark.parametrize("partitioner", ALL, ids=lambda p: type(p).__name__)
def test_partitioners_pickle_and_describe_themselves_alike(partitioner: Partitioner) -> None:
    again = pickle.loads(pickle.dumps(partitioner))
    assert again == partitioner
    assert json.dumps(again.describe()) == json.dumps(partitioner.describe())


def test_hash_places_rows_where_partition_ids_says() -> None:
    rows = batch(k=["a", None, "é"], n=[1, 2, 3])
    ids = HashPartitioner("k", 200).ids(rows, 0)
    assert ids.tolist() == partition_ids(rows, "k", 200).to_pylist()


def test_hash_is_checked_before_data_is_touched() -> None:
    schema = pa.schema([("k", pa.uint8())])
    with pytest.raises(UnsupportedType, match="uint8"):
        HashPartitioner("k", 3).check(schema)
    with pytest.raises(UserError, match="no key column 'q'"):
        HashPartitioner("q", 3).check(schema)
    with pytest.raises(UserError, match="partitions is 0"):
        HashPartitioner("k", 0)
    with pytest.raises(UserError, match="no key columns"):
        HashPartitioner([], 3)


def test_ranges_take_keys_up_to_and_including_their_bound() -> None:
    partitioner = RangePartitioner("k", [100, 200])
    assert partitioner.partitions == 3
    assert placed(partitioner, k=[50, 75, 150, 175, 250]) == [0, 0, 1, 1, 2]
    assert placed(partitioner, k=[100, 101, 200, 201]) == [0, 1, 1, 2]


def test_nulls_come_first_and_nan_last() -> None:
    keys = [None, -np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, NAN]
    assert placed(RangePartitioner("k", [0.0, np.inf]), k=keys) == [0, 0, 0, 0, 0, 1, 1, 2]
    assert placed(RangePartitioner("k", [None, -0.0]), k=keys) == [0, 1, 1, 1, 1, 2, 2, 2]
    assert placed(RangePartitioner("k", [1.0, NAN]), k=keys)[-2:] == [1, 1]


def test_strings_are_ordered_by_their_bytes() -> None:
    bounds = ["", "a", "a\0", "abcdefgh", "abcdefghi", "z", "é"]
    keys = ["", "\0", "a", "a\0", "a\0\0", "abcdefgh", "abcdefgha", "zz", "é", "é!", "🙂"]
    below = [sum(b.encode() < k.encode() for b in bounds) for k in keys]
    assert placed(RangePartitioner("k", bounds), k=keys) == below
    encoded = pa.array(keys).dictionary_encode()
    assert placed(RangePartitioner("k", bounds), k=encoded) == below


def test_several_keys_are_ordered_from_left_to_right() -> None:
    bounds = pa.table({"a": [1, 1, 2], "b": ["m", "x", None]})
    keys = [(0, "z"), (1, None), (1, "m"), (1, "n"), (1, "z"), (2, None), (2, ""), (3, "a")]
    a, b = zip(*keys, strict=True)
    assert placed(RangePartitioner(["a", "b"], bounds), a=list(a), b=list(b)) == [
        *(0, 0, 0, 1, 2, 2, 3, 3)
    ]


def test_wide_decimals_are_ordered_by_value() -> None:
    kind = pa.decimal128(38, 2)
    keys = pa.array([Decimal("-1e20"), Decimal("-6.01"), Decimal(-6), Decimal("1e20"), None], kind)
    partitioner = RangePartitioner("k", [-6, 0, Decimal(99999999999999999999)])
    assert placed(partitioner, k=keys) == [0, 0, 0, 3, 0]


def test_no_bounds_make_one_partition() -> None:
    assert placed(RangePartitioner("k", pa.array([], pa.int64())), k=[1, 2]) == [0, 0]


def test_bounds_take_the_type_of_the_column_where_nothing_is_lost() -> None:
    partitioner = RangePartitioner("k", [1, 2])
    for kind in (pa.int8(), pa.float32(), pa.decimal128(10, 2)):
        assert placed(partitioner, k=pa.array([1, 2, 3]).cast(pa.float64()).cast(kind)) == [0, 1, 2]


@pytest.mark.parametrize("bounds", [[2, 1], [1, 1], [1, None], [NAN, 1.0], [0.0, -0.0], ["b", "a"]])
def test_bounds_that_do_not_ascend_are_refused(bounds: list[Any]) -> None:
    with pytest.raises(UserError, match=r"bounds do not ascend\n  found: bound 1 is"):
        RangePartitioner("k", bounds)


def test_the_first_bound_out_of_order_is_named() -> None:
    with pytest.raises(UserError, match="bound 2 is 2, after 5"):
        RangePartitioner("k", [1, 5, 2, 3])


@pytest.mark.parametrize("bounds", [["a"], [1.5], [2**40]])
def test_bounds_of_another_type_are_refused(bounds: list[Any]) -> None:
    with pytest.raises(UserError, match="the column is int32"):
        RangePartitioner("k", bounds).check(pa.schema([("k", pa.int32())]))


def test_bounds_that_are_no_values_are_refused() -> None:
    with pytest.raises(UserError, match="not values of one type"):
        RangePartitioner("k", [1, "a"])
    with pytest.raises(UserError, match=r"give a pyarrow.Table with the columns a, b"):
        RangePartitioner(["a", "b"], [1, 2])
    with pytest.raises(UserError, match="no key column 'k'"):
        RangePartitioner("k", pa.table({"j": [1]}))


def test_bounds_that_differ_are_described_differently() -> None:
    def described(bounds: list[Any]) -> str:
        return json.dumps(RangePartitioner("k", bounds).describe())

    different: list[list[Any]] = [
        [1],
        [2],
        [1, 2],
        ["1"],
        [None],
        [0.5],
        [Decimal(1)],
        [Decimal(10) ** 20],
        [b"\1"],
    ]
    assert len({described(bounds) for bounds in different}) == len(different)
    assert described([-0.0]) == described([0.0])


def test_sampled_bounds_cut_evenly() -> None:
    sample = pa.table({"k": list(range(100))[::-1]})
    bounds = sample_bounds(sample, "k", 4)
    assert bounds.to_pydict() == {"k": [24, 49, 74]}


def test_a_heavy_value_leaves_even_parts_behind_it() -> None:
    sample = pa.table({"k": [0] * 60 + list(range(1, 41))})
    bounds = sample_bounds(sample, "k", 5)["k"].to_pylist()
    assert bounds == [0, 10, 20, 30]


def test_sampled_bounds_ascend_whatever_the_sample() -> None:
    odd = [NAN, None, 0.0, -0.0, 1.0, NAN, None, -1.0]
    sample = pa.table({"k": odd, "s": pa.array(list("bbaaccdd")).dictionary_encode()})
    for partitions in (1, 2, 3, 8, 100):
        bounds = sample_bounds(sample, ["k", "s"], partitions)
        assert len(bounds) < partitions
        RangePartitioner(["k", "s"], bounds).check(sample.schema)
    assert len(sample_bounds(sample.slice(0, 0), "k", 5)) == 0


def test_round_robin_gives_every_partition_its_turn() -> None:
    partitioner = RoundRobinPartitioner(3)
    rows = batch(k=list(range(12)))
    assert np.bincount(partitioner.ids(rows, 0)).tolist() == [4, 4, 4]
    assert partitioner.ids(rows.slice(5), 5).tolist() == partitioner.ids(rows, 0)[5:].tolist()


def test_a_broadcast_has_no_one_partition_for_a_row() -> None:
    with pytest.raises(UserError, match="every row into every partition"):
        BroadcastPartitioner(2).ids(batch(k=[1]), 0)


@pytest.mark.parametrize("number", [0, 70_000])
@pytest.mark.parametrize("kind", [RoundRobinPartitioner, BroadcastPartitioner])
def test_partitioners_refuse_impossible_numbers(kind: Callable[[int], object], number: int) -> None:
    with pytest.raises(UserError, match=f"partitions is {number}"):
        kind(number)


@pytest.mark.parametrize(
    "numbers",
    [pa.array([3, 0, 1]), np.array([3, 0, 1], np.int8), pa.chunked_array([[3, 0], [1]])],
    ids=["arrow", "numpy", "chunked"],
)
def test_a_function_of_ones_own_decides(numbers: object) -> None:
    partitioner = CustomPartitioner(lambda _: numbers, 4)
    assert placed(partitioner, amount=[1, 2, 3]) == [3, 0, 1]


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        (np.array([0]), "gave 1 numbers for 3 rows"),
        (pa.array([0, None, 1]), "gave null for row 1"),
        (np.array([0.0, 1.0, 2.0]), "gave float64"),
        ([0, 1, 2], "gave list"),
        (np.array([0, 4, 9]), "put row 11 into partition 4 of 4"),
        (np.array([0, 1, -1]), "put row 12 into partition -1 of 4"),
    ],
)
def test_wrong_answers_of_a_function_are_named(numbers: object, complaint: str) -> None:
    partitioner = CustomPartitioner(lambda _: numbers, 4)
    with pytest.raises(UserError, match=complaint):
        partitioner.ids(batch(amount=[1, 2, 3]), 10)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match="partition function is 3"):
        CustomPartitioner(3, 4)  # type: ignore[arg-type]
