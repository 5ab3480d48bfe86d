"""Several threads run a query where its rows are the same in whatever order they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import scan

from millrace.config import GIB, MIB, Config
from millrace.datasets.dataset import Dataset
from millrace.engine.duckdb_engine import Engine
from millrace.engine.stage_work import QueryWork, work_of
from millrace.engine.task_inputs import TaskInput
from millrace.plan.parallel_queries import threads_within


@pytest.fixture
def sales(tmp_path: Path) -> Dataset:
    table = pa.table({"shop": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "sales.parquet")
    return scan(tmp_path / "sales.parquet")


def in_any_order(dataset: Dataset) -> bool:
    work = work_of(dataset._plan, time_zone="UTC", config=Config())
    assert isinstance(work, QueryWork)
    return work.any_order


@pytest.mark.parametrize(
    "query",
    [
        lambda rows: rows.filter("amount > 3").select("note"),
        lambda rows: rows.group_by("shop").agg(n="count(*)", s="sum(amount)", m="avg(amount)"),
        lambda rows: rows.join(rows.select("shop"), on="shop", how="semi"),
        lambda rows: rows.sort("amount DESC").limit(3),
        lambda rows: rows.union(rows),
    ],
)
def test_rows_that_do_not_depend_on_the_order(
    sales: Dataset, query: Callable[[Dataset], Dataset]
) -> None:
    assert in_any_order(query(sales))


@pytest.mark.parametrize(
    "query",
    [
        lambda rows: rows.group_by("shop").agg(first="first(amount)"),
        lambda rows: rows.group_by("shop").agg(every="collect_list(amount)"),
        lambda rows: rows.group_by("shop").agg(note="max_by(note, amount)"),
        lambda rows: rows.limit(3),
        lambda rows: rows.drop_duplicates("shop"),
        lambda rows: rows.with_columns(n="row_number() OVER (PARTITION BY note ORDER BY shop)"),
        lambda rows: rows.select("initcap(note) AS note"),
        lambda rows: rows.map_batches(
            lambda batch: batch, pa.schema([("amount", pa.int64())])
        ).filter("amount > 1"),
    ],
    ids=["first", "list", "max_by", "limit", "duplicates", "window", "python", "function"],
)
def test_rows_that_depend_on_the_order_or_on_python_have_one_thread(
    sales: Dataset, query: Callable[[Dataset], Dataset]
) -> None:
    work = work_of(query(sales)._plan, time_zone="UTC", config=Config())

    assert isinstance(work, QueryWork)
    assert work.calls_users or not work.any_order


def test_the_threads_of_a_query_are_the_idle_ones_and_have_memory(tmp_path: Path) -> None:
    schema = pa.schema([("threads", pa.int64())])
    asked = "SELECT CAST(current_setting('threads') AS BIGINT) AS threads"

    def threads(count: int) -> int:
        engine = Engine(
            memory_bytes_max=GIB, spill_folder=str(tmp_path), time_zone="UTC", threads=count
        )
        (batch,) = engine.run(asked, {}, schema)
        return int(batch.column(0)[0].as_py())

    assert [threads(count) for count in (1, 3, 1)] == [1, 3, 1]
    assert [threads_within(GIB, n) for n in (1, 2, 64)] == [1, 2, 4]
    assert threads_within(64 * MIB, 8) == 1


def test_a_stream_is_read_whole_by_several_threads(tmp_path: Path) -> None:
    rows = pa.table({"k": [n % 1000 for n in range(2_000_000)]})
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    engine = Engine(memory_bytes_max=GIB, spill_folder=str(tmp_path), time_zone="UTC", threads=4)
    stream = TaskInput(rows.to_reader)

    batches = list(
        engine.run("SELECT k, count(*) AS n FROM input_0 GROUP BY 1", {"input_0": stream}, schema)
    )

    counts = pa.Table.from_batches(batches).sort_by("k")
    assert counts["k"].to_pylist() == list(range(1000))
    assert set(counts["n"].to_pylist()) == {2000}
