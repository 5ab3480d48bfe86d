"""A side of a join that was measured small is read by all tasks, and the other stays in place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, scan

from millrace.datasets.dataset import Dataset
from millrace.plan.planner.adaptive_stages import (
    AdaptableJoin,
    AdaptiveStages,
    adapt_stage,
    adaptable_joins,
)
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import Stage, plan_stages


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


@pytest.fixture
def customers(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"cust": range(50), "nation": ["n"] * 50}), tmp_path / "c.parquet")
    return scan(tmp_path / "c.parquet").filter("nation > 'a'")


def planned(dataset: Dataset) -> list[Stage]:
    return plan_stages(dataset._plan, CUT_UP)


def test_the_larger_sides_work_moves_into_the_joins_stage(
    orders: Dataset, customers: Dataset
) -> None:
    stages = planned(orders.filter("amount > 3").join(customers, on="cust").select("nation"))

    (choice,) = adaptable_joins(stages)
    changed = adapt_stage(stages, choice)

    assert choice == AdaptableJoin(reader=2, small=1, large=0, small_side="right")
    assert changed.reads == (1,)
    assert explain([changed]).splitlines() == [
        "stage 2 -> the result",
        "  project nation",
        "    inner join on cust = cust",
        "      project cust",
        "        filter amount > 3",
        "          scan parquet, 1 file, columns cust, amount",
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
    some = orders.filter("amount > 3")
    found = adaptable_joins(planned(customers.join(some, on="cust", how=how)))

    assert [choice.small_side for choice in found] == ([expected] if expected else [])


def test_a_join_that_others_rely_on_for_where_its_rows_lie_is_left_alone(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")

    assert adaptable_joins(planned(joined.group_by("cust").agg(n="count(*)"))) == []
    assert len(adaptable_joins(planned(joined.group_by("nation").agg(n="count(*)")))) == 1


def test_the_larger_side_waits_for_the_smaller_and_is_left_out_if_that_is_small(
    orders: Dataset, customers: Dataset
) -> None:
    stages = planned(orders.join(customers, on="cust"))
    course = AdaptiveStages(stages, broadcast_bytes_max=10, together_bytes_max=1)

    assert course.dependencies() == [{1}, set(), {0, 1}]
    assert course.stage(1, {}) is stages[1]
    assert course.stage(0, {1: 10}) is None
    changed = course.stage(2, {1: 10})
    assert changed is not None
    assert changed.reads == (1,)


def test_sides_that_are_both_large_are_both_exchanged(orders: Dataset, customers: Dataset) -> None:
    stages = planned(orders.join(customers, on="cust"))
    course = AdaptiveStages(stages, broadcast_bytes_max=10, together_bytes_max=1)

    assert [course.stage(n, {0: 99, 1: 11}) for n in range(3)] == stages


def test_joins_of_joins_change_one_after_the_other(orders: Dataset, customers: Dataset) -> None:
    names = customers.rename(nation="name", cust="amount")
    query = orders.join(customers, on="cust").join(names, on="amount").select("name", "nation")
    stages = planned(query)
    course = AdaptiveStages(stages, broadcast_bytes_max=10, together_bytes_max=1)
    inner, outer = adaptable_joins(stages)

    assert (outer.large, inner.reader) == (inner.reader, outer.large)
    measured = {inner.small: 1, outer.small: 1}
    assert course.stage(inner.large, measured) is None
    assert course.stage(inner.reader, measured) is None
    last = course.stage(outer.reader, measured)
    assert last is not None
    assert explain([last]).splitlines()[1:] == [
        "  project name, nation",
        "    inner join on amount = amount",
        "      inner join on cust = cust",
        "        scan parquet, 1 file, columns cust, amount",
        f"        read all of stage {inner.small}",
        f"      read all of stage {outer.small}",
    ]


def test_a_side_that_is_only_read_is_not_waited_for(orders: Dataset) -> None:
    stages = planned(orders.join(orders.select("cust", "amount AS more"), on="cust"))

    assert adaptable_joins(stages) == []
    assert AdaptiveStages(stages, broadcast_bytes_max=10, together_bytes_max=1).dependencies()[
        :2
    ] == [
        set(),
        set(),
    ]


def test_what_follows_few_rows_is_done_in_one_task(orders: Dataset) -> None:
    stages = planned(orders.group_by("note").agg(n="count(*)").sort("n"))
    course = AdaptiveStages(stages, broadcast_bytes_max=1, together_bytes_max=10)

    assert len(stages) == 4
    assert course.stage(0, {}) is stages[0]
    assert [course.stage(n, {0: 10}) for n in (1, 2)] == [None, None]
    last = course.stage(3, {0: 10})
    assert last is not None
    assert last.alone
    assert explain([last]).splitlines() == [
        "stage 3 -> the result",
        "  sort by n",
        "    final aggregate by note: COUNT(*)",
        "      read stage 0",
    ]
    assert course.skipped == dict.fromkeys((1, 2), "its rows are few and made in stage 3")


def test_many_rows_are_sorted_in_parts(orders: Dataset) -> None:
    stages = planned(orders.group_by("note").agg(n="count(*)").sort("n"))
    course = AdaptiveStages(stages, broadcast_bytes_max=1, together_bytes_max=10)

    assert [course.stage(n, {0: 11, 1: 11, 2: 11}) for n in range(4)] == stages


def test_few_rows_that_came_of_many_are_then_done_in_one_task(orders: Dataset) -> None:
    stages = planned(orders.group_by("note").agg(n="count(*)").sort("n"))
    course = AdaptiveStages(stages, broadcast_bytes_max=1, together_bytes_max=10)

    assert course.stage(1, {0: 11}) is stages[1]
    assert course.stage(2, {0: 11, 1: 10}) is None
    last = course.stage(3, {0: 11, 1: 10})
    assert last is not None
    assert last.reads == (1,)


def test_rows_that_are_kept_or_lie_as_asked_for_are_not_passed_over(orders: Dataset) -> None:
    few = orders.group_by("note").agg(n="count(*)")
    for asked in (few.durable(), few.repartition(3)):
        stages = planned(asked.sort("n"))
        course = AdaptiveStages(stages, broadcast_bytes_max=1, together_bytes_max=10)
        kept = next(stage.number for stage in stages if stage.why in ("to be kept", "asked for"))

        assert course.stage(kept, {kept - 1: 1}) is stages[kept]


def test_a_stage_that_others_read_too_is_run(orders: Dataset, customers: Dataset) -> None:
    few = orders.group_by("cust").agg(n="count(*)")
    stages = planned(few.join(customers, on="cust", how="full").sort("n"))
    course = AdaptiveStages(stages, broadcast_bytes_max=1, together_bytes_max=10)

    assert course.stage(0, {}) is stages[0]
    assert course.stage(1, {}) is stages[1]
