"""What the engine does not know runs on Spark, in the same query, and is saved and reused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udtf

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.errors import UserError
from millrace.plan.builders.build_on_spark import on_spark
from millrace.plan.nodes.on_spark import SparkCall, SparkCode, SparkQuery
from millrace.plan.relation import relation_of

pytestmark = pytest.mark.spark
WHY = "the engine has no sentences()"


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(2):
        rows = range(number * 3, number * 3 + 3)
        table = pa.table({"a": list(rows), "b": [f"Row {a}. It is short." for a in rows]})
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def by_spark(query: SparkQuery, *inputs: Dataset) -> Dataset:
    """The rows of Spark's query over datasets as input_0, input_1, ..."""
    runner = inputs[0]._runner
    named = [(f"input_{number}", plan_of(given)) for number, given in enumerate(inputs)]
    assert runner.analyzer is not None
    return Dataset(relation_of(on_spark(runner.analyzer, named, query, WHY)), runner)


def ran(dataset: Dataset) -> dict[str, tuple[int, int]]:
    return {report.name: (report.ran, report.reused) for report in dataset.run().stages}


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pa.Table.from_batches(
        dataset.to_batches(), dataset.arrow_schema
    ).to_pylist()
    return table


def words(ws: mr.Workspace, texts: Path, query: str = "") -> Dataset:
    small = ws.read_parquet(texts).filter("a > 0").with_columns(twice="a * 2")
    return by_spark(query or "SELECT twice, sentences(b) AS words FROM input_0", small)


def test_a_query_is_half_native_and_half_on_spark(ws: mr.Workspace, texts: Path) -> None:
    query = words(ws, texts).filter("twice > 4").sort("twice DESC").limit(2)

    assert rows(query) == [
        {"twice": 10, "words": [["Row", "5"], ["It", "is", "short"]]},
        {"twice": 8, "words": [["Row", "4"], ["It", "is", "short"]]},
    ]
    text = str(query.explain())
    assert f"on Spark: SELECT twice, sentences(b) AS words FROM input_0, because {WHY}" in text
    assert "input_0 of Spark 0\n  stage 0" in text
    assert WHY in str(query.run())


def test_a_second_run_and_the_next_application_reuse_rows_of_spark(
    spark: SparkSession, ws: mr.Workspace, texts: Path
) -> None:
    first = ran(words(ws, texts).agg(n="sum(twice)"))
    assert all(reused == 0 for _, reused in first.values())

    again = mr.open(ws.path, spark)
    # Another query over the same rows of Spark, too.
    assert ran(words(again, texts).agg(n="sum(twice)")) == {
        name: (0, tasks) for name, (tasks, _) in first.items()
    }
    other = ran(words(again, texts).agg(n="max(twice)"))
    assert other["on Spark 0"] == (0, first["on Spark 0"][0])


def test_rows_of_spark_are_computed_again_when_the_text_or_an_input_or_a_setting_changes(
    spark: SparkSession, ws: mr.Workspace, texts: Path
) -> None:
    def spark_ran(query: str = "") -> int:
        report = words(ws, texts, query).run()
        (stage,) = [stage for stage in report.stages if stage.name == "on Spark 0"]
        return stage.ran

    assert spark_ran() > 0
    assert spark_ran() == 0
    assert spark_ran("SELECT twice, sentences(upper(b)) AS words FROM input_0") > 0
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert spark_ran() > 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert spark_ran() == 0
    pq.write_table(pa.table({"a": [9], "b": ["One more."]}), texts / "2.parquet")
    assert spark_ran() > 0
    assert {"twice": 18, "words": [["One", "more"]]} in rows(words(ws, texts))


def test_a_text_that_gives_other_rows_each_time_is_never_reused(
    spark: SparkSession, ws: mr.Workspace, texts: Path
) -> None:
    random = words(ws, texts, "SELECT twice, uuid() AS id FROM input_0")
    assert rows(random) != rows(random)
    assert "uuid gives other values in each run" in str(random.run())

    spark.udf.register("millrace_mark", lambda text: f"<{text}>", "string")
    marked = "SELECT millrace_mark(b) AS m FROM input_0 WHERE twice = 2"
    assert rows(words(ws, texts, marked)) == [{"m": "<Row 1. It is short.>"}]
    spark.udf.register("millrace_mark", lambda text: f"[{text}]", "string")
    assert rows(words(ws, texts, marked)) == [{"m": "[Row 1. It is short.]"}]
    assert "function millrace_mark may change" in str(words(ws, texts, marked).run())


def test_what_runs_on_spark_has_the_time_of_the_run(ws: mr.Workspace, texts: Path) -> None:
    times = ("current_timestamp() AS at", "current_date AS day", "localtimestamp() AS here")
    texts_of_time = ("unix_timestamp() AS second", "cast(current_time() AS string) AS clock")
    listed = ", ".join((*times, *texts_of_time))
    later = words(ws, texts, f"SELECT twice, {listed}, now() FROM input_0")
    (row, *others) = rows(later.with_columns(native="now()", today="current_date"))
    assert all({**other, "twice": 0} == {**row, "twice": 0} for other in others)
    assert row["at"] == row["now()"] == row["native"]
    assert row["day"] == row["today"] == row["at"].date()
    assert row["here"] == row["at"].replace(tzinfo=None)
    assert row["second"] == int(row["at"].timestamp())
    assert row["clock"].rstrip("0") == row["at"].time().isoformat().rstrip("0")
    named = "SELECT `current_date()` FROM (SELECT current_date() FROM input_0)"
    assert rows(words(ws, texts, named))[0] == {"current_date()": row["day"]}


@pytest.mark.slow
def test_a_time_of_day_is_no_timestamp(spark: SparkSession, ws: mr.Workspace) -> None:
    text = (
        "SELECT cast(TIME'12:30:00' AS string) AS t, cast('9:08:07.129' AS time(2)) AS u, "
        "cast('09:59:00' AS time) < TIME'10:00:00' AS b"
    )
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        ours, theirs = ws.sql(text).to_arrow(), spark.sql(text).toArrow()
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    assert ours.to_pylist() == theirs.to_pylist()
    with pytest.raises(UserError, match="UNSUPPORTED_TIME_TYPE"):
        ws.sql("SELECT TIME'12:30:01' AS t")


def test_spark_computes_over_several_inputs_and_over_its_own_rows(
    spark: SparkSession, ws: mr.Workspace, texts: Path
) -> None:
    first = words(ws, texts).filter("twice < 9")
    counts = ws.from_arrow(pa.table({"k": [2, 4, 6], "n": [1, 0, 2]}))
    joined = by_spark(
        "SELECT k, n, stack(1, size(words)) AS (s) FROM input_0 JOIN input_1 ON k = twice "
        "WHERE n > 0 ORDER BY k",
        first,
        counts,
    )
    both = joined.join(first.rename(twice="k"), on="k").select("k", "n", "s").sort("k")

    assert rows(both) == [{"k": 2, "n": 1, "s": 2}, {"k": 6, "n": 2, "s": 2}]
    assert {run for run, _ in ran(both).values()} == {0}
    views = [table.name for table in spark.catalog.listTables()]
    assert [name for name in views if name.startswith("millrace_")] == []


def test_a_method_of_dataframe_runs_on_spark(ws: mr.Workspace, texts: Path) -> None:
    numbers = ws.read_parquet(texts).select("a")

    assert rows(
        by_spark(SparkCall(method="approxQuantile", args=(["a"], [0.5], 0.0)), numbers)
    ) == [{"value": [[2.0]]}]
    described = by_spark(SparkCall(method="describe", args=("a",)), numbers)
    assert {"summary": "max", "a": "5"} in rows(described)
    sample = by_spark(SparkCall(method="sample", args=(0.5,)), numbers)
    assert "sample without a seed" in str(sample.run())


def test_a_query_that_spark_refuses_as_well_fails_when_it_is_written(
    ws: mr.Workspace, texts: Path
) -> None:
    with pytest.raises(UserError, match=r"Spark refuses this as well: .*`nothing`"):
        words(ws, texts, "SELECT nothing FROM input_0")
    with pytest.raises(UserError, match="Spark refuses this as well"):
        words(ws, texts, "DROP TABLE orders")
    assert ws.runs() == []  # Nothing ran for that.


@pytest.mark.slow
def test_rows_of_spark_that_are_lost_are_computed_again(ws: mr.Workspace, texts: Path) -> None:
    total = words(ws, texts).agg(n="sum(twice)")
    expected = rows(total)
    for file in Path(ws.path, "shuffle").rglob("data.ipc"):
        file.unlink()

    assert rows(words(ws, texts).agg(n="sum(twice)")) == expected
    for file in Path(ws.path, "shuffle").rglob("data.ipc"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert rows(words(ws, texts).agg(n="max(twice)")) == [{"n": 10}]


def test_queries_of_several_threads_do_not_meet(ws: mr.Workspace, texts: Path) -> None:
    results: dict[int, list[dict[str, Any]]] = {}

    def compute(number: int) -> None:
        query = f"SELECT twice, repeat('x', {number}) AS x FROM input_0 WHERE twice = 2"
        results[number] = rows(words(ws, texts, query))

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [{"twice": 2, "x": "x" * number}] for number in range(1, 4)}


def test_a_table_of_sparks_catalog_is_recognised_by_its_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=mr.Config().with_options(recent_change="1ms"))
    folder = tmp_path / "kept"
    spark.range(5).write.parquet(str(folder))
    spark.sql(f"CREATE TABLE millrace_kept USING parquet LOCATION '{folder}'")
    spark.range(3).createOrReplaceTempView("millrace_seen")
    try:
        kept = ws.sql("SELECT sum(id) AS n FROM millrace_kept")
        assert kept.to_arrow().to_pylist() == [{"n": 10}]
        assert ran(ws.sql("SELECT max(id) AS n FROM millrace_kept"))["on Spark 0"][0] == 0
        seen = ws.sql("SELECT sum(id) AS n FROM millrace_seen")
        assert ran(seen)["on Spark 0"][0] > 0
        assert ran(seen)["on Spark 0"][0] > 0
        assert "which may change" in str(seen.run())
        spark.sql("INSERT INTO millrace_kept VALUES (100)")
        assert kept.to_arrow().to_pylist() == [{"n": 110}]
    finally:
        spark.sql("DROP TABLE millrace_kept")
        spark.catalog.dropTempView("millrace_seen")


def test_code_over_dataframes_runs_on_spark(ws: mr.Workspace) -> None:
    left = ws.from_arrow(pa.table({"k": [1, 1, 2], "v": [1, 2, 3]}))
    right = ws.from_arrow(pa.table({"k": [2, 3], "w": ["a", "b"]}))

    def cogrouped(one: DataFrame, other: DataFrame) -> DataFrame:
        def sizes(key: tuple[Any, ...], mine: pa.Table, theirs: pa.Table) -> pa.Table:
            counts = [[key[0].as_py()], [mine.num_rows], [theirs.num_rows]]
            return pa.table(dict(zip(("k", "n", "m"), counts, strict=True)))

        both = one.groupBy("k").cogroup(other.groupBy("k"))
        return both.applyInArrow(sizes, "k long, n long, m long")

    def counts(identity: str | None) -> Dataset:
        code = SparkCode(text="cogroup(k)", build=cogrouped, identity=identity)
        return by_spark(code, left, right).orderBy("k")

    assert [tuple(row) for row in counts("sizes 1").collect()] == [(1, 2, 0), (2, 1, 1), (3, 0, 1)]
    assert ran(counts("sizes 1"))["on Spark 0"][0] == 0
    assert ran(counts("sizes 2"))["on Spark 0"][0] > 0
    assert "no identity" in str(counts(None).run())


def test_table_functions_of_users_run_on_spark(spark: SparkSession, ws: mr.Workspace) -> None:
    @udtf(returnType="n: int, square: int")  # type: ignore[arg-type]
    class Squares:
        def eval(self, count: int) -> Iterator[tuple[int, int]]:
            for n in range(count):
                yield n, n * n

    spark.udtf.register("millrace_squares", Squares)  # type: ignore[arg-type]
    squares = ws.sql("SELECT n, square FROM millrace_squares(3) ORDER BY n DESC")

    assert [tuple(row) for row in squares.collect()] == [(2, 4), (1, 1), (0, 0)]
    assert "on Spark" in str(squares.explain())
