"""The side of a join with few keys runs first, and the other keeps only rows with these keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, scan

from millrace.datasets.dataset import Dataset
from millrace.plan.planner.adaptive_stages import AdaptiveStages
from millrace.plan.planner.key_reduction import ReducibleSide, reducible_sides
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import Stage, plan_stages

ROWS = 1000


@pytest.fixture
def sales(tmp_path: Path) -> Dataset:
    table = pa.table({"item": range(ROWS), "amount": range(ROWS), "day": [1] * ROWS})
    pq.write_table(table, tmp_path / "sales.parquet")
    return scan(tmp_path / "sales.parquet")


@pytest.fixture
def items(tmp_path: Path) -> Dataset:
    table = pa.table({"item": range(100), "kind": range(100)})
    pq.write_table(table, tmp_path / "items.parquet")
    return scan(tmp_path / "items.parquet").filter("kind < 10")


def planned(dataset: Dataset) -> list[Stage]:
    return plan_stages(dataset._plan, replace(CUT_UP, reduced_rows_min=1))


def sides_of(stages: list[Stage], rows_min: int = 1) -> list[ReducibleSide]:
    return reducible_sides(stages, rows_min=rows_min, bytes_max=1 << 20, split_bytes_target=1 << 20)


def course(stages: list[Stage]) -> AdaptiveStages:
    return AdaptiveStages(
        stages, broadcast_bytes_max=1, together_bytes_max=1, sides=sides_of(stages)
    )


def test_the_large_side_reads_the_keys_of_the_small_one(sales: Dataset, items: Dataset) -> None:
    stages = planned(sales.filter("amount > 3").join(items, on="item", how="inner"))
    (side,) = sides_of(stages)
    stage = course(stages).stage(side.large, {side.small: 10}, {side.small: 10})

    assert stages[side.large].number in course(stages).dependencies()[2]
    assert course(stages).dependencies()[side.large] == {side.small}
    assert stage is not None
    assert stage.placement == stages[side.large].placement
    assert explain([stage]).splitlines()[1:] == [
        "  semi join on item = item",
        "    filter amount > 3",
        "      scan parquet, 1 file, columns item, amount, day",
        f"    read all of stage {side.small}",
    ]


@pytest.mark.parametrize(("rows", "size"), [(501, 10), (10, (1 << 20) + 1)])
def test_many_keys_reduce_nothing(sales: Dataset, items: Dataset, rows: int, size: int) -> None:
    stages = planned(sales.join(items, on="item"))
    (side,) = sides_of(stages)

    assert (
        course(stages).stage(side.large, {side.small: size}, {side.small: rows})
        is (stages[side.large])
    )


@pytest.mark.parametrize(
    ("how", "reduced"),
    [("inner", True), ("semi", True), ("right", True), ("left", False), ("anti", False)],
)
def test_a_side_whose_rows_count_without_a_partner_stays_whole(
    sales: Dataset, items: Dataset, how: str, *, reduced: bool
) -> None:
    stages = planned(sales.join(items, on="item", how=how))

    assert bool(sides_of(stages)) == reduced


@pytest.mark.parametrize("how", ["left", "semi", "anti", "inner"])
def test_the_right_side_of_most_joins_may_be_reduced(
    sales: Dataset, items: Dataset, how: str
) -> None:
    stages = planned(items.join(sales, on="item", how=how))

    (side,) = sides_of(stages)
    assert (side.large_keys, side.small_keys) == (("item",), ("item",))


def test_groups_by_the_key_are_made_of_the_rows_that_are_left(
    sales: Dataset, items: Dataset
) -> None:
    totals = sales.group_by("item").agg(total="sum(amount)")
    stages = planned(items.join(totals, on="item"))
    (side,) = sides_of(stages)
    stage = course(stages).stage(side.large, {side.small: 10}, {side.small: 10})

    assert stage is not None
    assert "semi join on item = item" in explain([stage])


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.map_batches(lambda batch: batch, pa.schema([("item", pa.int64())])),
        lambda rows: rows.repartition(4, "item"),
        lambda rows: rows.durable(),
    ],
    ids=["function", "asked for", "kept"],
)
def test_rows_of_functions_and_rows_that_are_kept_stay_whole(
    sales: Dataset, items: Dataset, change: Callable[[Dataset], Dataset]
) -> None:
    stages = planned(change(sales).join(items, on="item"))

    kept = [stage for stage in stages if stage.why in ("asked for", "to be kept")]
    assert not {side.large for side in sides_of(stages)} & {stage.number for stage in kept}
    if not kept:
        assert sides_of(stages) == []


def test_small_sides_are_not_reduced(sales: Dataset, items: Dataset) -> None:
    assert sides_of(planned(sales.join(items, on="item")), rows_min=ROWS + 1) == []


def test_a_side_that_has_too_many_keys_for_sure_is_not_waited_for(sales: Dataset) -> None:
    stages = planned(sales.join(sales.filter("amount < 480").select("item", "day AS d"), on="item"))
    half = planned(sales.join(sales.select("item", "day AS d").filter("d <> 3"), on="item"))

    assert len(sides_of(stages)) == 1
    assert sides_of(half) == []


def test_two_stages_never_wait_for_each_other(sales: Dataset, items: Dataset) -> None:
    joined = sales.join(items, on="item").join(sales.select("item", "day AS d"), on="item")
    stages = planned(joined)
    needs = course(stages).dependencies()

    done: set[int] = set()
    while ready := [n for n, need in enumerate(needs) if n not in done and need <= done]:
        done |= set(ready)
    assert len(done) == len(stages)


def test_each_join_with_a_large_table_reduces_a_scan_of_its_own(
    sales: Dataset, items: Dataset
) -> None:
    few = items.filter("kind < 5")
    joined = sales.join(items, on="item").union(sales.join(few, on="item"))
    stages = planned(joined)

    assert len({side.large for side in sides_of(stages)}) == 2


def test_a_condition_on_groups_is_measured_before_the_other_side_runs(sales: Dataset) -> None:
    large = sales.group_by("item").agg(total="sum(amount)").filter("total > 990")
    stages = planned(sales.select("item", "day").join(large, on="item", how="semi"))

    (own,) = [stage for stage in stages if stage.why == "few groups may be left"]
    assert any(own.number in needs for needs in course(stages).dependencies())
