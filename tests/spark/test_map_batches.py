"""Functions over batches: Spark's answers, recognised by their code, and their errors come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.dataset_kit import CONFIGS, WITH_JOINS, random_table, rows_of, write

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import FunctionFailed, SchemaMismatch, UserError

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("w", pa.float64())])
Function = Callable[[pa.RecordBatch], Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    return write(folder / "in", random_table(7, 3000, keys=40))


@pytest.fixture
def few(tmp_path: Path) -> str:
    (tmp_path / "few").mkdir()
    for number in range(3):
        values = np.arange(100) + 1000 * number
        pq.write_table(pa.table({"v": values}), tmp_path / "few" / f"{number}.parquet")
    return str(tmp_path / "few")


def weigh() -> Function:
    """A function with a closure, made where Spark's workers cannot import it."""
    factor = 2.0

    def weighed(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        weights = pc.multiply(pc.cast(batch["v"], pa.float64()), factor)
        rows = pa.record_batch([batch["k"], batch["s"], weights], schema=SCHEMA)
        yield rows.filter(pc.greater(rows["w"], 0.0))
        yield rows.filter(pc.less(rows["w"], -1900.0))

    return weighed


def callable_object() -> Function:
    class Label:
        def __init__(self, text: str) -> None:
            self.text = text

        def __call__(self, batch: pa.RecordBatch) -> pa.Table:
            labels = pa.array([self.text] * batch.num_rows)
            return pa.table([*batch.columns, labels], names=[*batch.schema.names, "label"])

    return Label("x")


@pytest.mark.parametrize("config", WITH_JOINS)
def test_functions_between_queries_give_sparks_answer(
    spark: SparkSession, tmp_path: Path, source: str, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    totals = pa.schema([("s", pa.string()), ("total", pa.float64()), ("n", pa.int64())])
    labelled = totals.append(pa.field("label", pa.string()))
    label = callable_object()

    mine = (
        ws.read_parquet(source)
        .filter("k IS NOT NULL")
        .map_batches(weigh(), SCHEMA)
        .filter("w < 1500")
        .group_by("s")
        .agg(total="sum(w)", n="count(*)")
        .map_batches(label, labelled)
        .sort("s")
    )

    weighed, totalled = weigh(), label
    theirs = (
        spark.read.parquet(source)
        .where("k IS NOT NULL")
        .mapInArrow(
            lambda rows: (out for b in rows for out in weighed(b)), "k long, s string, w double"
        )
        .where("w < 1500")
        .groupBy("s")
        .agg({"w": "sum", "*": "count"})
        .selectExpr("s", "`sum(w)` AS total", "`count(1)` AS n")
        .mapInArrow(
            lambda rows: (out for b in rows for out in totalled(b).to_batches()),
            "s string, total double, n long, label string",
        )
        .orderBy("s")
        .toArrow()
    )
    found = mine.to_arrow()
    assert found.schema == pa.schema([pa.field(f.name, f.type) for f in theirs.schema])
    assert found.to_pylist() == theirs.to_pylist()


@pytest.mark.parametrize("config", ["one task", "cut up"])
def test_a_function_above_and_below_a_join_and_in_a_union(
    spark: SparkSession, tmp_path: Path, source: str, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    data = ws.read_parquet(source)
    only = pa.schema([("k", pa.int64()), ("top", pa.int32())])

    def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["k", "top"])

    tops = data.group_by("k").agg(top="max(v)").map_batches(narrow, only)
    both = data.join(tops, on="k").map_batches(narrow, only)
    everything = both.union(tops).distinct()

    frame = spark.read.parquet(source)
    theirs = frame.groupBy("k").agg({"v": "max"}).toDF("k", "top").toArrow()
    assert rows_of(everything.to_arrow()) == rows_of(theirs)


def reports(dataset: Dataset) -> list[tuple[int, int]]:
    return [(report.ran, report.reused) for report in dataset.run().stages]


def test_finished_work_is_recognised_by_the_functions_code(
    spark: SparkSession, tmp_path: Path, few: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark)
    schema = pa.schema([("v", pa.int64())])

    def add(number: int) -> Dataset:
        def added(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.record_batch({"v": pc.add(batch["v"], number)})

        return ws.read_parquet(few).map_batches(added, schema)

    assert reports(add(1)) == [(3, 0)]
    assert reports(add(1)) == [(0, 3)]
    other = add(2)
    (report,) = other.run().stages
    assert (report.ran, report.reused) == (3, 0)
    assert "work function changed" in str(report)
    assert sum(other.to_arrow()["v"].to_pylist()) == sum(add(1).to_arrow()["v"].to_pylist()) + 300
    assert reports(add(1)) == [(0, 3)]


def test_a_function_that_code_cannot_tell_runs_again_unless_it_has_a_version(
    spark: SparkSession, tmp_path: Path, few: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark)
    schema = pa.schema([("v", pa.int64())])
    drawn = np.random.default_rng(1)  # Can be shipped, and has no stable form.

    def noisy(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"v": drawn.integers(0, 9, batch.num_rows)})

    unnamed = ws.read_parquet(few).map_batches(noisy, schema)
    named = ws.read_parquet(few).map_batches(noisy, schema, version="1")
    later = ws.read_parquet(few).map_batches(noisy, schema, version="2")

    assert reports(unnamed) == reports(unnamed) == [(3, 0)]
    (report,) = unnamed.run().stages
    assert "noisy is not recognised: 'drawn', which" in str(report)
    assert reports(named) == [(3, 0)]
    assert reports(named) == [(0, 3)]
    assert reports(later) == [(3, 0)]


def test_what_a_function_raises_comes_out_of_its_task(
    spark: SparkSession, tmp_path: Path, few: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark)
    schema = pa.schema([("v", pa.int64())])

    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 2050 in batch["v"].to_pylist():
            raise LookupError("2050 is not liked here")
        return batch

    with pytest.raises(FunctionFailed) as raised:
        ws.read_parquet(few).map_batches(picky, schema).agg(n="count(*)").to_arrow()
    text = str(raised.value)
    assert text.startswith(f"map_batches({picky.__qualname__}) raised\n")
    assert 'raise LookupError("2050 is not liked here")' in text
    assert text.rstrip().endswith("LookupError: 2050 is not liked here")

    with pytest.raises(SchemaMismatch, match="column 'v': expected int32, found int64"):
        ws.read_parquet(few).map_batches(lambda b: b, pa.schema([("v", pa.int32())])).to_arrow()


def test_a_function_that_cannot_be_shipped_is_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, few: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark)
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    query = ws.read_parquet(few).map_batches(locked, pa.schema([("v", pa.int64())]), version="1")
    with pytest.raises(UserError, match=r"locked\): the function cannot be sent to tasks"):
        query.to_arrow()
    assert ws.runs() == []


def test_rows_can_be_spread_over_tasks_for_a_function_however_few_they_are(
    spark: SparkSession, tmp_path: Path, few: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark)

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": [batch.num_rows]})

    spread = ws.read_parquet(few).repartition(4).map_batches(count, pa.schema([("n", pa.int64())]))

    assert [report.map_tasks for report in spread.run().stages] == [3, 4]
    assert sum(spread.to_arrow()["n"].to_pylist()) == 300
