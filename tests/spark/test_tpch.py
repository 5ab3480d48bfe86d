"""The 22 TPC-H queries give DuckDB's and Spark's answers, in one task and with every exchange."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from examples.tpch.data import MARKER, make_data
from examples.tpch.judges import (
    difference,
    duckdb_answer,
    duckdb_tables,
    order_of,
    spark_answer,
    spark_tables,
)
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables, fraction
from pyspark.sql import SparkSession
from tests.laws import TPC_SCALE

import millrace as mr
from millrace.errors import UserError

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
SCALE = 0.05  # The smallest at which every query has rows to compare.
EXCHANGED = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=1_000_000,
    split_bytes_target=1_000_000,
    reduced_rows_min=1,
)
# Between them: all kinds of joins, conditions beside keys, distinct counts, sorts and limits.
EXCHANGED_ALWAYS = (2, 21)
ONE_TASK_ALWAYS = (17,)
# With those whose answers TPC published, and joins of all sizes; the others with the whole scale.
AT_SCALE_ONE = (3, 5, 6, 10, 13, 14, 17, 19, 22)


class Judges:
    """Answers of DuckDB and Spark over one folder of data, each asked for once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self._duckdb = duckdb_tables(folder, threads=2)
        spark_tables(spark, folder)
        self.duckdb = cache(lambda number: duckdb_answer(self._duckdb, folder, number))
        self.spark = cache(lambda number: spark_answer(spark, folder, number))

    def check(self, number: int, found: pa.Table) -> None:
        """Values are those of both, names and types are Spark's; there is something to compare."""
        assert found.num_rows > 0
        assert found.column(found.num_columns - 1).null_count == 0
        order = order_of(number)
        theirs = self.spark(number)
        assert found.column_names == theirs.column_names
        assert [field.type for field in found.schema] == [field.type for field in theirs.schema]
        assert difference(found, theirs, order) is None
        assert difference(found, self.duckdb(number), order) is None


def few_partitions(spark: SparkSession) -> Iterator[None]:
    """Spark is a judge of answers here, not of speed: 200 partitions of nothing would take long."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before or "200")


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    folder = make_data(SCALE, tmp_path_factory.mktemp("tpch") / "data")
    for _ in few_partitions(spark):
        yield Judges(spark, folder)


def answer(
    spark: SparkSession, place: Path, folder: Path, config: mr.Config, number: int
) -> pa.Table:
    with mr.open(place / "mill", spark, config=config) as ws:
        return QUERIES[number](Tables.open(ws, folder)).to_arrow()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number in ONE_TASK_ALWAYS else (pytest.mark.slow,))
        for number in QUERIES
    ],
)
def test_a_query_in_one_task_gives_the_answer_of_duckdb_and_spark(
    spark: SparkSession, tmp_path: Path, small: Judges, number: int
) -> None:
    small.check(number, answer(spark, tmp_path, small.folder, mr.Config(), number))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number in EXCHANGED_ALWAYS else (pytest.mark.slow,))
        for number in QUERIES
    ],
)
def test_a_query_with_exchanges_gives_the_answer_of_duckdb_and_spark(
    spark: SparkSession, tmp_path: Path, small: Judges, number: int
) -> None:
    found = answer(spark, tmp_path, small.folder, EXCHANGED, number)

    small.check(number, found)


@pytest.fixture(scope="module")
def large(spark: SparkSession) -> Judges:
    return Judges(spark, make_data(1))


@pytest.mark.slow
@pytest.mark.parametrize("number", QUERIES if TPC_SCALE >= 1 else AT_SCALE_ONE)
def test_a_query_at_scale_one_gives_the_answer_of_duckdb_and_spark(
    spark: SparkSession, tmp_path: Path, large: Judges, number: int
) -> None:
    large.check(number, answer(spark, tmp_path, large.folder, mr.Config(), number))


@pytest.mark.slow
def test_answers_at_scale_one_are_those_that_tpc_published(large: Judges) -> None:
    published = {6: "123141078.23", 14: "16.38", 17: "348406.05", 19: "3083843.06"}

    found = {number: large.spark(number).column(0)[0].as_py() for number in published}

    assert {n: str(round(value, 2)) for n, value in found.items()} == published


@pytest.mark.slow
def test_data_is_made_once_and_again_if_it_is_not_whole(tmp_path: Path) -> None:
    folder = make_data(0.001, tmp_path / "data")
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    make_data(0.001, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == made

    (folder / MARKER).unlink()
    (folder / "orders" / "orders.1.parquet").unlink()
    make_data(0.001, folder)

    assert {path.name for path in folder.rglob("*")} == {path.name for path in made}
    with pytest.raises(UserError, match="was made for another scale factor"):
        make_data(0.002, folder)


def test_the_share_of_the_stock_shrinks_with_the_scale() -> None:
    assert [fraction(scale) for scale in (0.01, 1, 10)] == ["0.01", "0.0001", "0.00001"]


def test_the_judge_sees_every_kind_of_difference() -> None:
    right = pa.table(
        {"k": [1, 2, 2, None], "d": [Decimal("1.10"), Decimal("2.20"), Decimal("3.30"), None]}
    )

    def wrong(table: pa.Table, expected: pa.Table = right) -> str:
        return difference(table, expected, ["k"]) or "nothing"

    assert wrong(right) == "nothing"
    assert wrong(right.take([0, 2, 1, 3])) == "nothing", "rows that tie may come in any order"
    assert "same order by k" in wrong(right.take([1, 0, 2, 3]))
    assert "3 rows, expected 4" in wrong(right.slice(0, 3))
    assert "d is Decimal('2.20')" in wrong(right.take([0, 1, 1, 3]))
    assert "columns ['k', 'x']" in wrong(right.rename_columns(["k", "x"]))
    near = pa.table({"k": right["k"], "d": [1.1, 2.2, 3.3000000001, None]})
    far = pa.table({"k": right["k"], "d": [1.1, 2.2, 3.4, None]})
    assert wrong(right, near) == "nothing"
    assert "expected 3.4" in wrong(right, far)


def run_example(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "examples.tpch", "--scale", "0.001", *arguments, "--data", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_example_explains_every_query_without_spark(tmp_path: Path) -> None:
    text = run_example("--explain", folder=tmp_path / "data")

    assert [f"query {number}" in text for number in QUERIES] == [True] * 22


@pytest.mark.slow
def test_the_example_runs_by_itself_and_compares(tmp_path: Path) -> None:
    text = run_example("--query", "5", "--check", folder=tmp_path / "data")

    assert "query 5: " in text
    assert "DuckDB's answer is the same" in text
