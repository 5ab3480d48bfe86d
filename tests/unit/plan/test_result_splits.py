"""Plans that hand each row on are spread over tasks earlier than others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import SMALL, scan

from millrace.datasets.dataset import Dataset
from millrace.plan.planner.exchanges import scanned_bytes
from millrace.plan.planner.stages import plan_stages


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


@pytest.fixture
def customers(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"cust": range(5), "nation": ["n"] * 5}), tmp_path / "c.parquet")
    return scan(tmp_path / "c.parquet")


def test_rows_that_go_on_one_by_one_are_spread_over_tasks_before_others(
    orders: Dataset, customers: Dataset
) -> None:
    size = scanned_bytes(orders._plan)
    sizes = replace(SMALL, broadcast_bytes_max=size - 1, result_split_bytes_target=size - 1)
    joined = orders.join(customers, on="cust").filter("amount > 3")

    def is_one_task(query: Dataset) -> bool:
        return len(plan_stages(query._plan, sizes)) == 1

    assert not is_one_task(joined)
    assert not is_one_task(joined.select("nation", "amount + 1 AS more", "note", "cust"))
    assert is_one_task(joined.group_by("nation").agg(total="sum(amount)"))
    assert is_one_task(joined.sort("amount"))
    assert is_one_task(joined.limit(3))
    assert is_one_task(joined.join(joined.rename(cust="other"), on="amount"))
    sizes = replace(sizes, result_split_bytes_target=1 << 30)
    assert is_one_task(joined)
