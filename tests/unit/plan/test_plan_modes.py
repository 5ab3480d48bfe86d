"""Calls on a dataset follow its own mode, and seldom ask the session."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import scan
from tests.unit.runner_kit import NoRunner

from millrace.datasets.dataset import Dataset
from millrace.plan.plan_modes import modes_in
from millrace.sql.sql_mode import SqlMode


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


class CountingRunner(NoRunner):
    """Counts how often the session is asked for its mode."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = 0

    @property
    def mode(self) -> SqlMode:
        self.asked += 1
        return SqlMode(ansi=False)


def test_calls_on_a_dataset_follow_the_mode_of_its_first_expressions(orders: Dataset) -> None:
    runner = CountingRunner()
    dataset = Dataset(orders._relation, runner)
    filtered = dataset.filter("amount > 10")
    assert runner.asked == 1

    totals = filtered.with_columns(more="amount + 1").group_by("cust").agg(total="sum(more)")
    query = totals.filter("total > 3").sort("cust").limit(3)

    assert runner.asked == 1
    assert set(modes_in(query._plan)) == {SqlMode(ansi=False)}
