"""Whole plans: where exchanges are put, where stages are cut, which columns are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.config import Config
from millrace.dataset import Dataset
from millrace.plan.exchanges import Sizes, insert_exchanges
from millrace.plan.nodes import Node, Scan
from millrace.plan.pruning import prune
from millrace.plan.stages import cut, explain
from millrace.scan.source import Listing, open_source
from millrace.shuffle.handle import RunReport

CUT_UP = Sizes(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=100, partitions_max=4
)
BROADCAST = Sizes(
    one_task_bytes_max=1, broadcast_bytes_max=1 << 30, partition_bytes_target=100, partitions_max=4
)
SMALL = Sizes(
    one_task_bytes_max=1 << 30,
    broadcast_bytes_max=1,
    partition_bytes_target=100,
    partitions_max=4,
)


class NoRunner:
    """Plans are looked at here, not run."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], tuple[RunReport, ...]]:
        raise AssertionError(plan)

    def explain(self, plan: Node) -> str:
        raise AssertionError(plan)


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
    source = open_source(str(path), Listing(now_ms=0, recent_ms=Config().recent_ms))
    return Dataset(Scan(source, tuple(source.schema.names)), NoRunner())


def stages(dataset: Dataset, sizes: Sizes = CUT_UP) -> list[str]:
    return explain(cut(insert_exchanges(prune(dataset.plan), sizes))).splitlines()


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
        "stage 0 -> hash(cust) into 4",
        "  partial aggregate by cust: SUM(amount)",
        "    filter amount > 10",
        "      scan parquet, 1 file, columns cust, amount",
        "stage 1 -> the result",
        "  final aggregate by cust: SUM(amount)",
        "    read stage 0",
    ]


def test_a_join_of_two_scans_is_three_stages(orders: Dataset, customers: Dataset) -> None:
    assert stages(orders.join(customers, on="cust").select("amount", "nation")) == [
        "stage 0 -> hash(cust) into 4",
        "  scan parquet, 1 file, columns cust, amount",
        "stage 1 -> hash(cust) into 4",
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
        "stage 0 -> hash(cust) into 4",
        "stage 1 -> hash(cust) into 4",
        "stage 2 -> the result",
    ]
    assert sum(line.startswith("stage") for line in stages(more)) == 3
    assert sum(line.startswith("stage") for line in stages(other)) == 4


def test_a_small_right_side_is_broadcast_where_that_is_right(
    orders: Dataset, customers: Dataset
) -> None:
    inner = stages(orders.join(customers, on="cust"), BROADCAST)
    full = stages(orders.join(customers, on="cust", how="full"), BROADCAST)

    assert inner[0] == "stage 0 -> broadcast"
    assert "    read all of stage 0" in inner
    assert not any("broadcast" in line for line in full)


def test_what_is_small_is_not_cut_up(orders: Dataset, customers: Dataset) -> None:
    query = orders.join(customers, on="cust").group_by("nation").agg(n="count(*)")

    assert sum(line.startswith("stage") for line in stages(query, SMALL)) == 1


def test_a_count_distinct_is_not_split_before_the_exchange(orders: Dataset) -> None:
    query = orders.group_by("cust").agg(kinds="count(distinct note)")

    assert not any("partial" in line for line in stages(query))
    assert sum(line.startswith("stage") for line in stages(query)) == 2


def test_equal_names_on_both_sides_get_right_behind_them(
    orders: Dataset, customers: Dataset
) -> None:
    named = customers.rename(nation="amount")

    assert orders.join(named, on="cust").columns == ["cust", "amount", "note", "amount_right"]
    assert orders.join(customers, left_on="cust", right_on="cust").columns == [
        "cust",
        "amount",
        "note",
        "cust_right",
        "nation",
    ]
