"""Sort, limit, union, repartition, durable, joins on conditions: Spark's answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions
from tests.laws import few_quick
from tests.spark.dataset_kit import (
    CONFIGS,
    CUT_UP,
    WITH_JOINS,
    WITHOUT_JOINS,
    random_table,
    rows_of,
    write,
)

import millrace as mr

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("data")
    left = write(folder / "left", random_table(3, 3000, keys=200))
    right = write(folder / "right", random_table(4, 40, keys=30))
    return left, right


def texts(table: pa.Table) -> list[list[str]]:
    """Rows as text, in their order."""
    return [[repr(value) for value in row.values()] for row in table.to_pylist()]


@pytest.mark.parametrize("config", WITHOUT_JOINS)
def test_sorts_have_sparks_order(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    rows, frame = ws.read_parquet(tables[0]), spark.read.parquet(tables[0])
    frame.createOrReplaceTempView("rows_to_sort")
    for order in (
        ["k", "f", "s", "v"],
        ["f DESC", "k DESC", "s DESC", "v DESC"],
        ["f ASC NULLS LAST", "k DESC NULLS FIRST", "s", "v"],
        ["v % 10 DESC", "length(s)", "k", "f", "s", "v"],
    ):
        listed = ", ".join(order)
        expected = spark.sql(f"SELECT * FROM rows_to_sort ORDER BY {listed}").toArrow()
        first = spark.sql(f"SELECT * FROM rows_to_sort ORDER BY {listed} LIMIT 7").toArrow()

        assert texts(rows.sort(*order).to_arrow()) == texts(expected)
        assert texts(rows.sort(*order).limit(7).to_arrow()) == texts(first)


def test_a_large_sort_is_made_in_parts_that_follow_one_another(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    query = ws.read_parquet(tables[0]).sort("f DESC", "k DESC")

    reports = query.run().stages

    assert reports[2].map_tasks > 1
    assert [report.ran for report in query.run().stages] == [0, 0, 0]


def test_a_small_result_is_sorted_in_one_place_without_another_round(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    query = ws.read_parquet(tables[0]).group_by("s").agg(n="count(*)").sort("n DESC", "s")

    found = query.to_arrow()

    expected = spark.read.parquet(tables[0]).groupBy("s").count().toArrow().to_pylist()
    wanted = sorted(((row["s"], row["count"]) for row in expected), key=lambda r: (-r[1], r[0]))
    assert [(row["s"], row["n"]) for row in found.to_pylist()] == wanted


@pytest.mark.parametrize("config", WITHOUT_JOINS)
def test_limits_and_unions(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    left, right = (ws.read_parquet(path) for path in tables)
    frames = [spark.read.parquet(path) for path in tables]
    both = left.union(right, left.filter("v > 0"))
    expected = frames[0].union(frames[1]).union(frames[0].filter("v > 0"))

    everything = rows_of(expected.toArrow())
    some = rows_of(both.limit(50).to_arrow())
    counts = left.agg(n="count(*)").union(right.agg(n="count(*)")).to_arrow()["n"].to_pylist()

    assert rows_of(both.to_arrow()) == everything
    assert len(some) == 50
    assert set(some) <= set(everything)
    assert left.limit(0).to_arrow().num_rows == 0
    assert sorted(counts) == [40, 3000]
    grouped = both.group_by("s").agg(n="count(*)", total="sum(v)").to_arrow()
    wanted = (
        expected.groupBy("s").agg(functions.expr("count(*)"), functions.expr("sum(v)")).toArrow()
    )
    assert rows_of(grouped) == rows_of(wanted)


@pytest.mark.parametrize("config", WITH_JOINS)
@pytest.mark.parametrize("how", few_quick(["inner", "left", "full", "semi", "anti", "right"], 2))
def test_joins_with_a_condition(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], how: str, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    left, right = (ws.read_parquet(path) for path in tables)
    one, two = (spark.read.parquet(path) for path in tables)
    kinds = ((one.f > 0) & (two.s == "näme-1")) | ((one.f <= 0) & (two.s != "näme-1"))
    on = (one.k == two.k) & (one.v > two.v) & (one.s != "näme-3") & kinds
    condition = """v > v_right AND s != 'näme-3'
        AND ((f > 0 AND s_right = 'näme-1') OR (f <= 0 AND s_right != 'näme-1'))"""
    names = ["k", "s", "f", "v", "k_right", "s_right", "f_right", "v_right"]
    expected = one.join(two, on, how).toDF(*(names[:4] if how in ("semi", "anti") else names))

    found = left.join(right, left_on="k", right_on="k", how=how, condition=condition).to_arrow()

    assert found.column_names == expected.columns
    assert rows_of(found) == rows_of(expected.toArrow())


@pytest.mark.parametrize("config", WITH_JOINS)
@pytest.mark.parametrize("how", few_quick(["left", "semi", "anti", "inner", "cross"], 2))
def test_joins_without_keys(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], how: str, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    left, right = (ws.read_parquet(path).filter("v > 500") for path in tables)
    one, two = (spark.read.parquet(path).filter("v > 500") for path in tables)
    on = one.v < two.v
    expected = one.join(two, on, "inner" if how == "cross" else how)
    names = ["k", "s", "f", "v", "k_right", "s_right", "f_right", "v_right"]

    found = left.join(right, how=how, condition="v < v_right").to_arrow()

    wanted = expected.toDF(*(names[:4] if how in ("semi", "anti") else names)).toArrow()
    assert rows_of(found) == rows_of(wanted)


@pytest.mark.parametrize("config", WITHOUT_JOINS)
def test_rows_are_the_same_wherever_they_are_put_or_kept(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    rows = ws.read_parquet(tables[0])
    expected = rows_of(spark.read.parquet(tables[0]).toArrow())

    assert rows_of(rows.repartition(5).to_arrow()) == expected
    assert rows_of(rows.repartition(5, "s", "k").to_arrow()) == expected
    assert rows_of(rows.durable().to_arrow()) == expected


def test_durable_rows_are_not_calculated_again_by_another_query(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    kept = ws.read_parquet(tables[0]).filter("v > 0").durable()
    kept.agg(n="count(*)").run()

    first, *_ = kept.group_by("s").agg(n="count(*)").run().stages

    assert (first.ran, first.reused > 1) == (0, True)


def test_rows_that_are_only_passed_on_are_told_apart_by_their_columns(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    rows = ws.read_parquet(tables[0])
    rows.select("s", "v").repartition(3, "s").run()

    found = rows.select("s", "f").repartition(3, "s")

    assert found.run().stages[0].reused == 0
    expected = spark.read.parquet(tables[0]).select("s", "f").toArrow()
    assert rows_of(found.to_arrow()) == rows_of(expected)


@pytest.mark.parametrize("how", few_quick(["inner", "left", "right", "semi", "anti"], 2))
def test_a_side_that_comes_out_small_spares_the_other_its_exchange(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], how: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP.with_options(broadcast_bytes_max=6_000))
    many = ws.read_parquet(tables[0])
    few = many.filter("v = 7").select("k", "v AS w")
    frame = spark.read.parquet(tables[0])
    small = frame.filter("v = 7").selectExpr("k", "v AS w")
    query = few.join(many, on="k", how=how) if how == "right" else many.join(few, on="k", how=how)

    reports = query.run().stages

    theirs = small.join(frame, "k", how) if how == "right" else frame.join(small, "k", how)
    assert min(report.map_tasks for report in reports) == 0
    assert rows_of(query.to_arrow()) == rows_of(theirs.toArrow())
