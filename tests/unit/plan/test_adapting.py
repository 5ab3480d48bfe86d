"""A side of a join that was measured small is read by all tasks, and the other stays in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, scan

from millrace.dataset import Dataset
from millrace.plan.adapting import Adaptable, adapt, adaptable, is_small
from millrace.plan.stages import Stage, explain, plan_stages


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


@pytest.fixture
def customers(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"cust": range(50), "nation": ["n"] * 50}), tmp_path / "c.parquet")
    return scan(tmp_path / "c.parquet")


def planned(dataset: Dataset) -> list[Stage]:
    return plan_stages(dataset.plan, CUT_UP)


def test_the_larger_sides_work_moves_into_the_joins_stage(
    orders: Dataset, customers: Dataset
) -> None:
    stages = planned(orders.filter("amount > 3").join(customers, on="cust").select("nation"))

    (choice,) = adaptable(stages)
    changed = adapt(stages, choice)

    assert choice == Adaptable(reader=2, small=1, large=0, small_side="right")
    assert changed.reads == (1,)
    assert explain([changed]).splitlines() == [
        "stage 2 -> the result",
        "  project nation",
        "    inner join on cust = cust",
        "      filter amount > 3",
        "        scan parquet, 1 file, columns cust, amount",
        "      read all of stage 1",
    ]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", "left"),
        ("right", "left"),
        ("left", "right"),
        ("semi", "right"),
        ("anti", "right"),
        ("full", None),
    ],
)
def test_only_a_side_that_can_be_whole_everywhere_is(
    orders: Dataset, customers: Dataset, how: str, expected: str | None
) -> None:
    found = adaptable(planned(customers.join(orders, on="cust", how=how)))

    assert [choice.small_side for choice in found] == ([expected] if expected else [])


def test_a_join_that_others_rely_on_for_where_its_rows_lie_is_left_alone(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")

    assert adaptable(planned(joined.group_by("cust").agg(n="count(*)"))) == []
    assert len(adaptable(planned(joined.group_by("nation").agg(n="count(*)")))) == 1


def test_small_is_what_was_measured_to_be_so() -> None:
    choice = Adaptable(reader=2, small=1, large=0, small_side="right")

    assert is_small(choice, {1: 10}, 10)
    assert not is_small(choice, {1: 11}, 10)
    assert not is_small(choice, {}, 10)
    assert not is_small(replace(choice, small=3), {1: 10}, 10)
