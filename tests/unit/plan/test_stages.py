"""Whole plans: where exchanges are put, where stages are cut, which columns are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.durations import ms
from millrace.errors import UserError
from millrace.plan.nodes.placement import ByHash
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.exchanges import PlanLimits, insert_exchanges, scanned_bytes
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import plan_stages
from millrace.plan.relation import relation_of
from millrace.scan.source import FileSource, Listing, open_source

CUT_UP = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=100, partitions_max=4
)
BROADCAST = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1 << 30, partition_bytes_target=100, partitions_max=4
)
SMALL = PlanLimits(
    one_task_bytes_max=1 << 30,
    broadcast_bytes_max=1,
    partition_bytes_target=100,
    partitions_max=4,
)


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


@pytest.fixture
def customers(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"cust": range(50), "nation": ["n"] * 50}), tmp_path / "c.parquet")
    return scan(tmp_path / "c.parquet")


def scan(path: Path) -> Dataset:
    source = open_source(str(path), Listing(now_ms=0, recent_ms=ms(Config().recent_change)))
    return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())


def stages(dataset: Dataset, sizes: PlanLimits = CUT_UP) -> list[str]:
    return explain(plan_stages(dataset._plan, sizes)).splitlines()


def test_a_lone_scan_is_one_stage(orders: Dataset) -> None:
    assert stages(orders) == [
        "stage 0 -> the result",
        "  scan parquet, 1 file, columns cust, amount, note",
    ]


def test_a_group_by_is_cut_between_partial_and_final_and_reads_what_it_needs(
    orders: Dataset,
) -> None:
    query = orders.filter("amount > 10").group_by("cust").agg(total="sum(amount)")

    assert stages(query) == [
        "stage 0 -> hash(cust) into 4: rows of a group must meet",
        "  partial aggregate by cust: SUM(amount)",
        "    filter amount > 10",
        "      scan parquet, 1 file, columns cust, amount",
        "stage 1 -> the result",
        "  final aggregate by cust: SUM(amount)",
        "    read stage 0",
    ]


def test_a_join_of_two_scans_is_three_stages(orders: Dataset, customers: Dataset) -> None:
    assert stages(orders.join(customers, on="cust").select("amount", "nation")) == [
        "stage 0 -> hash(cust) into 4: rows with equal keys must meet",
        "  scan parquet, 1 file, columns cust, amount",
        "stage 1 -> hash(cust) into 4: rows with equal keys must meet",
        "  scan parquet, 1 file, columns cust, nation",
        "stage 2 -> the result",
        "  project amount, nation",
        "    inner join on cust = cust",
        "      read stage 0",
        "      read stage 1",
    ]


def test_rows_that_lie_by_the_key_already_are_not_exchanged_again(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust").group_by("cust").agg(n="count(*)")
    more = orders.join(customers, on="cust").group_by("nation", "cust").agg(n="count(*)")
    other = orders.join(customers, on="cust").group_by("nation").agg(n="count(*)")

    assert [line for line in stages(joined) if line.startswith("stage")] == [
        "stage 0 -> hash(cust) into 4: rows with equal keys must meet",
        "stage 1 -> hash(cust) into 4: rows with equal keys must meet",
        "stage 2 -> the result",
    ]
    assert sum(line.startswith("stage") for line in stages(more)) == 3
    assert sum(line.startswith("stage") for line in stages(other)) == 4


def test_a_small_right_side_is_broadcast_where_that_is_right(
    orders: Dataset, customers: Dataset
) -> None:
    inner = stages(orders.join(customers, on="cust"), BROADCAST)
    full = stages(orders.join(customers, on="cust", how="full"), BROADCAST)

    assert inner[0] == "stage 0 -> broadcast: the right side is small"
    assert "    read all of stage 0" in inner
    assert not any("broadcast" in line for line in full)


def test_what_is_small_is_not_cut_up(orders: Dataset, customers: Dataset) -> None:
    query = orders.join(customers, on="cust").group_by("nation").agg(n="count(*)")

    assert sum(line.startswith("stage") for line in stages(query, SMALL)) == 1


def test_a_count_distinct_is_not_split_before_the_exchange(orders: Dataset) -> None:
    query = orders.group_by("cust").agg(kinds="count(distinct note)")

    assert not any("partial" in line for line in stages(query))
    assert sum(line.startswith("stage") for line in stages(query)) == 2


def test_equal_names_on_both_sides_stay_or_get_right_behind_them(
    orders: Dataset, customers: Dataset
) -> None:
    named = customers.rename(nation="amount")

    assert orders.join(named, on="cust").columns == ["cust", "amount", "note", "amount"]
    assert orders.join(customers, left_on="cust", right_on="cust").columns == [
        "cust",
        "amount",
        "note",
        "cust_right",
        "nation",
    ]


def test_a_small_left_side_is_broadcast_as_well(orders: Dataset, customers: Dataset) -> None:
    sizes = replace(CUT_UP, broadcast_bytes_max=scanned_bytes(customers._plan))

    inner = stages(customers.join(orders, on="cust").select("amount"), sizes)
    right = stages(customers.join(orders, on="cust", how="right").select("amount"), sizes)
    left = stages(customers.join(orders, on="cust", how="left").select("amount"), sizes)

    assert inner[0] == right[0] == "stage 0 -> broadcast: the left side is small"
    assert left[0] == "stage 0 -> hash(cust) into 4: rows with equal keys must meet"


def test_without_keys_the_right_side_is_read_by_every_task(
    orders: Dataset, customers: Dataset
) -> None:
    query = orders.join(customers, how="cross", condition="amount > cust_right").select("note")

    assert stages(query) == [
        "stage 0 -> broadcast: there are no keys to meet by",
        "  scan parquet, 1 file, columns cust",
        "stage 1 -> the result",
        "  project note",
        "    cross join on amount > cust_right",
        "      scan parquet, 1 file, columns amount, note",
        "      read all of stage 0",
    ]


def test_a_sort_measures_rows_then_puts_them_into_ranges(orders: Dataset) -> None:
    assert stages(orders.sort("cust", "amount DESC").select("cust")) == [
        "stage 0 -> forward: bounds are found in these rows",
        "  scan parquet, 1 file, columns cust, amount",
        "stage 1 -> range(cust) into up to 4: parts of the order follow one another",
        "  read stage 0",
        "stage 2 -> the result",
        "  project cust",
        "    sort by cust, amount DESC",
        "      read stage 1",
    ]


def test_an_order_that_no_ranges_have_is_made_in_one_place(orders: Dataset) -> None:
    query = orders.sort("cust NULLS LAST")

    assert stages(query)[0] == "stage 0 -> gather: this order is made in one place"


def test_the_first_rows_of_an_order_are_found_before_the_exchange(orders: Dataset) -> None:
    assert stages(orders.sort("amount DESC").select("cust").limit(3)) == [
        "stage 0 -> gather: the first rows of all",
        "  sort by amount DESC, first 3",
        "    scan parquet, 1 file, columns cust, amount",
        "stage 1 -> the result",
        "  project cust",
        "    sort by amount DESC, first 3",
        "      read stage 0",
    ]
    assert stages(orders.limit(3).select("cust")) == [
        "stage 0 -> gather: the first rows of all",
        "  limit 3",
        "    scan parquet, 1 file, columns cust",
        "stage 1 -> the result",
        "  project cust",
        "    limit 3",
        "      read stage 0",
    ]


def test_rows_are_skipped_after_the_exchange(orders: Dataset) -> None:
    assert [line.strip() for line in stages(orders.sort("cust").offset(4).limit(3))][:2] == [
        "stage 0 -> gather: the first rows of all",
        "sort by cust, first 7",
    ]
    assert stages(orders.offset(4).select("cust"))[0] == "stage 0 -> gather: the first rows of all"
    for skipped in (orders.offset(4), orders.sort("cust").offset(4)):
        before, after = "\n".join(stages(skipped)).split("stage 1")
        assert "4" not in before
        assert "4" in after


def test_a_union_needs_no_exchange_and_is_one_stage(orders: Dataset) -> None:
    query = orders.union(orders.select("amount", "cust", "note")).select("cust")

    assert stages(query) == [
        "stage 0 -> the result",
        "  project cust",
        "    union of 2",
        "      project cust",
        "        scan parquet, 1 file, columns cust",
        "      project amount as cust",
        "        project amount",
        "          scan parquet, 1 file, columns amount",
    ]


def test_groups_of_hardly_more_than_a_row_are_not_begun_before_the_exchange(
    orders: Dataset,
) -> None:
    asked: list[tuple[tuple[str, ...], int]] = []

    def few(source: FileSource, keys: tuple[str, ...], partitions: int) -> bool:
        assert source.format == "parquet"
        asked.append((keys, partitions))
        return False

    grouped = orders.rename(cust="who").filter("amount > 3").group_by("who").agg(n="count(*)")

    assert stages(grouped, replace(CUT_UP, many_to_a_group=few)) == [
        "stage 0 -> hash(who) into 4: rows of a group must meet",
        "  project cust as who",
        "    filter amount > 3",
        "      scan parquet, 1 file, columns cust, amount",
        "stage 1 -> the result",
        "  aggregate by who: COUNT(*)",
        "    read stage 0",
    ]
    assert asked == [(("cust",), 4)]


def test_what_lies_alike_is_grouped_below_a_union(orders: Dataset) -> None:
    halves = [orders.filter(f"amount > {n}").group_by("cust").agg(n="count(*)") for n in range(2)]
    query = halves[0].union(halves[1]).group_by("cust").agg(n="sum(n)")

    assert [line for line in stages(query) if line.startswith("stage")] == [
        "stage 0 -> hash(cust) into 4: rows of a group must meet",
        "stage 1 -> hash(cust) into 4: rows of a group must meet",
        "stage 2 -> the result",
    ]


def test_durable_and_repartition_are_exchanges_as_asked_for(orders: Dataset) -> None:
    kept = orders.filter("amount > 1").durable().group_by("cust").agg(n="count(*)")
    placed = orders.repartition(4, "cust").group_by("cust").agg(n="count(*)")
    dealt = orders.repartition(3).select("cust")

    assert stages(kept)[0] == "stage 0 -> forward: to be kept"
    assert [line for line in stages(placed) if line.startswith("stage")] == [
        "stage 0 -> hash(cust) into 4: asked for",
        "stage 1 -> the result",
    ]
    assert stages(dealt)[0] == "stage 0 -> round robin into 3: asked for"


def test_what_is_small_is_cut_up_only_to_keep_it(orders: Dataset) -> None:
    kept = orders.repartition(3).durable().sort("cust")

    assert [line for line in stages(kept, SMALL) if line.startswith("stage")] == [
        "stage 0 -> gather: to be kept",
        "stage 1 -> the result",
    ]


def test_operators_say_what_they_need_and_how_their_rows_lie(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")._plan
    grouped = orders.group_by("cust").agg(n="count(*)")._plan
    placed = insert_exchanges(joined, CUT_UP)

    assert joined.requires_shuffle()
    assert joined.partition_keys() == (("cust",), ("cust",))
    assert grouped.partition_keys() == (("cust",),)
    assert not orders.filter("cust > 1")._plan.requires_shuffle()
    assert joined.output_placement is None
    assert placed.output_placement == ByHash(("cust",), 4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda one, _: one.sort(), "nothing to sort by"),
        (lambda one, _: one.sort("amuont"), "amount"),
        (lambda one, _: one.limit(-1), "not a number of rows"),
        (lambda one, two: one.union(two), "different numbers of columns"),
        (lambda one, _: one.repartition(0), "partitions"),
        (lambda one, _: one.repartition(2, "nope"), "no column nope"),
        (lambda one, two: one.join(two, how="full", condition="amount > 1"), "has no keys"),
        (lambda one, two: one.join(two, on="cust", condition="amount"), "not a condition"),
        (lambda one, two: one.join(two, on="cust", left_on="cust"), "give one of them"),
        (lambda one, two: one.join(two, left_on="note", right_on="cust"), "different types"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(
    orders: Dataset,
    customers: Dataset,
    call: Callable[[Dataset, Dataset], Dataset],
    says: str,
) -> None:
    with pytest.raises(UserError, match=says):
        call(orders, customers)


def test_what_only_a_filter_looks_at_is_not_exchanged(orders: Dataset, customers: Dataset) -> None:
    few = orders.filter("amount > 10").join(customers, on="cust")

    assert stages(few.select("cust", "nation"))[:4] == [
        "stage 0 -> hash(cust) into 4: rows with equal keys must meet",
        "  project cust",
        "    filter amount > 10",
        "      scan parquet, 1 file, columns cust, amount",
    ]
    wanted = few.select("cust", "amount", "nation")
    assert stages(wanted)[1].startswith("  filter")


def test_a_small_side_is_made_in_one_task(orders: Dataset, customers: Dataset) -> None:
    small = customers.join(customers.select("cust", "nation AS again"), on="cust")
    limit = scanned_bytes(small._plan)
    sizes = replace(CUT_UP, one_task_bytes_max=limit, partition_bytes_target=limit)

    found = plan_stages(orders.join(small, on="cust").select("again")._plan, sizes)

    assert [stage.alone for stage in found] == [False, True, False]
    assert found[1].reads == ()
    assert explain(found).splitlines()[2:5] == [
        f"stage 1 -> {found[1].placement}: rows with equal keys must meet",
        "  inner join on cust = cust",
        "    scan parquet, 1 file, columns cust",
    ]


def test_a_small_side_of_a_union_is_made_apart(orders: Dataset, customers: Dataset) -> None:
    small = customers.group_by("cust").agg(n="count(*)")
    limit = scanned_bytes(small._plan)
    sizes = replace(CUT_UP, one_task_bytes_max=limit, partition_bytes_target=limit)

    found = plan_stages(orders.select("cust", "amount AS n").union(small)._plan, sizes)

    assert [(stage.alone, stage.why) for stage in found] == [
        (True, "made in one task"),
        (False, "the result"),
    ]
    assert len(found[1].branches) == 2
