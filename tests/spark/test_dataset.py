"""Joins and group-bys on Spark tasks: Spark's answers, and finished tasks are not run again."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
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
from millrace.cli.main import cli
from millrace.errors import UserError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("data")
    left = write(folder / "left", random_table(1, 5000, keys=300))
    right = write(folder / "right", random_table(2, 900, keys=400))
    return left, right


@pytest.mark.parametrize("config", WITH_JOINS)
@pytest.mark.parametrize("how", few_quick(["inner", "left", "full", "semi", "anti", "right"], 3))
def test_every_join_gives_sparks_answer(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], how: str, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    left, right = (ws.read_parquet(path) for path in tables)
    theirs = spark.read.parquet(tables[0]).join(spark.read.parquet(tables[1]), "k", how)

    mine = left.join(right, on="k", how=how)

    assert mine.columns == theirs.columns
    positions = [str(number) for number in range(len(mine.columns))]
    expected = theirs.toDF(*positions).toArrow()
    found = mine.toDF(*positions).to_arrow()
    assert [f.type for f in found.schema] == [f.type for f in expected.schema]
    assert rows_of(found) == rows_of(expected)


@pytest.mark.parametrize("config", WITHOUT_JOINS)
def test_group_by_gives_sparks_answer(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    frame = spark.read.parquet(tables[0])
    calls = {
        "total": "sum(v)",
        "n": "count(*)",
        "have": "count(f)",
        "low": "min(s)",
        "high": "max(f)",
        "mean": "avg(v)",
        "kinds": "count(distinct s)",
        "both": "sum(v) + count(*)",
    }
    for keys in (["k"], ["s", "k"], ["f"], []):
        expected = frame.groupBy(*keys).agg(
            *(functions.expr(text).alias(name) for name, text in calls.items())
        )
        grouped = ws.read_parquet(tables[0]).group_by(*keys).agg(**calls)
        found = grouped.to_arrow()
        assert [f.type for f in found.schema] == [f.type for f in expected.toArrow().schema]
        assert rows_of(found) == rows_of(expected.toArrow()), keys


@pytest.mark.parametrize("config", WITHOUT_JOINS)
def test_filters_and_calculated_columns_before_and_after_an_exchange(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    mine = (
        ws.read_parquet(tables[0])
        .filter("v > 0 AND s <> 'näme-3'")
        .with_columns(double="v * 2", label="upper(s)")
        .group_by("label")
        .agg(total="sum(double)", n="count(*)")
        .filter("n > 10")
        .select("label", "total / n AS mean", "n")
    )
    theirs = spark.sql(
        "SELECT label, total / n AS mean, n FROM (SELECT upper(s) label, sum(v * 2) total, count(*)"
        f" n FROM parquet.`{tables[0]}` WHERE v > 0 AND s <> 'näme-3' GROUP BY 1) WHERE n > 10"
    )

    assert rows_of(mine.to_arrow()) == rows_of(theirs.toArrow())
    assert mine.count() == theirs.count()


def test_a_query_of_few_columns_of_large_files_is_still_one_task_or_exchanged(
    spark: SparkSession, tmp_path: Path
) -> None:
    wide = {f"c{n}": np.random.default_rng(n).random(4000) for n in range(20)}
    path = write(tmp_path / "in", pa.table({"k": np.arange(4000) % 7, **wide}), files=4)
    whole = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    for limit in (whole // 40, whole // 4, whole * 2):
        config = CUT_UP.with_options(one_task_bytes_max=limit)
        ws = mr.open(tmp_path / f"mill-{limit}", spark, config=config)
        data = ws.read_parquet(path)
        assert data.group_by("k").agg(n="count(*)").to_arrow().num_rows == 7
        assert data.join(data, on="k").agg(n="count(*)").to_arrow()["n"].to_pylist() == [
            sum(count**2 for count in np.bincount(np.arange(4000) % 7).tolist())
        ]
        assert data.count() == 4000
        assert data.filter("c0 >= 0").to_arrow().num_rows == 4000


def test_a_small_query_is_one_stage_and_a_join_of_scans_three(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    small = mr.open(tmp_path / "small", spark)
    large = mr.open(tmp_path / "large", spark, config=CUT_UP)

    def joined(ws: mr.Workspace) -> str:
        return ws.read_parquet(tables[0]).join(ws.read_parquet(tables[1]), on="k").explain()

    assert joined(small).count("stage ") == 1
    text = joined(large)
    assert sum(line.startswith("stage") for line in text.splitlines()) == 3
    alone = large.read_parquet(tables[0]).explain()
    assert sum(line.startswith("stage") for line in alone.splitlines()) == 1
    twice = large.read_parquet(tables[0]).join(large.read_parquet(tables[1]), on="k")
    grouped = twice.group_by("k").agg(n="count(*)").explain()
    assert sum(line.startswith("stage") for line in grouped.splitlines()) == 3


def test_what_ran_is_shown_for_each_operator(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    query = ws.read_parquet(tables[0]).group_by("k").agg(n="count(*)")
    text = query.explain(analyze=True)
    assert "that ran:" in text
    assert re.search(r"scan.*: [\d,]+ rows, .* s\n", text), text
    assert "reused, not run" in query.explain(extended=True, analyze=True)
    assert "reused, not run" in query.explain_html(analyze=True)
    small = mr.open(tmp_path / "small", spark).read_parquet(tables[0]).agg(n="count(*)")
    assert "one task does all of this query" in small.explain(mode="formatted")


def test_the_same_query_again_runs_no_task_and_one_changed_file_few(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", random_table(5, 6000, keys=50), files=6)
    config = CUT_UP.with_options(partition_bytes_target=40_000)
    ws = mr.open(tmp_path / "mill", spark, config=config)

    def ask() -> tuple[pa.Table, list[tuple[int, int]]]:
        query = ws.read_parquet(source).filter("v > 0").group_by("k").agg(total="sum(v)")
        reports = query.run().stages
        return query.to_arrow(), [(report.ran, report.reused) for report in reports]

    first, ran = ask()
    again, reused = ask()
    pq.write_table(random_table(6, 1000, keys=50), Path(source) / "0.parquet")
    changed, few = ask()

    assert [one[1] for one in ran] == [0, 0]
    assert [one[0] for one in reused] == [0, 0]
    assert rows_of(again) == rows_of(first)
    assert few[0][0] < few[0][1]
    theirs = spark.read.parquet(source).where("v > 0").groupBy("k").agg({"v": "sum"}).toArrow()
    assert rows_of(changed) == rows_of(theirs.rename_columns(["k", "total"]))


def test_groups_and_a_join_finish_under_a_memory_limit_of_64_mib(
    spark: SparkSession, tmp_path: Path
) -> None:
    count = 2_000_000
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"k": np.arange(count) % (count // 2), "v": np.arange(count)}), path)
    config = mr.Config().with_options(
        one_task_bytes_max=1 << 40, query_memory_bytes_max=64 * 1024 * 1024
    )
    ws = mr.open(tmp_path / "mill", spark, config=config)
    data = ws.read_parquet(path)

    groups = data.group_by("k").agg(n="count(*)", top="max(v)", low="min(v)", total="sum(v)")
    pairs = data.join(data.rename(v="w"), on="k")

    assert groups.agg(g="count(*)", t="sum(total)").to_arrow().to_pylist() == [
        {"g": count // 2, "t": count * (count - 1) // 2}
    ]
    assert pairs.count() == count * 2


def test_the_command_line_lists_a_dataset_by_its_last_stage(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    groups = ws.read_parquet(tables[0]).group_by("s").agg(n="count(*)").to_arrow()

    (row,) = json.loads(CliRunner().invoke(cli, ["shuffle", "ls", ws.path, "--json"]).output)

    assert (row["state"], row["rows"]) == ("finished", groups.num_rows)


def test_columns_of_any_name_pass_every_exchange(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    names = {"total amount": "sum(v)", 'a"b': "max(v)", "a`b": "min(v)", "sum(v)": "count(*)"}
    ws = mr.open(tmp_path / "mill", spark, config=CUT_UP)
    rows = ws.read_parquet(tables[0]).rename({"k": "the key"})
    theirs = spark.read.parquet(tables[0]).groupBy(functions.col("k").alias("the key"))

    mine = rows.group_by("the key").agg(names).sort("`total amount`", "`the key`")

    expected = theirs.agg(*(functions.expr(text).alias(name) for name, text in names.items()))
    assert rows_of(mine.to_arrow()) == rows_of(expected.toArrow())
    assert mine.to_arrow().column_names == ["the key", *names]
    report = mine.run()
    assert (report.rows, report.ran, report.reused) == (expected.count(), 0, report.map_tasks)
    assert [stage.name for stage in report.stages] == [f"stage {n}" for n in range(4)]


def test_wrong_calls_are_refused_when_they_are_made(
    spark: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    ws = mr.open(tmp_path / "mill", spark, create=True)
    left, right = (ws.read_parquet(path) for path in tables)

    with pytest.raises(UserError, match=r"no column amount, in filter\('amount > 1'\)"):
        left.filter("amount > 1")
    with pytest.raises(UserError, match="FILTER_NOT_BOOLEAN"):
        left.filter("v + 1")
    with pytest.raises(UserError, match="uper"):
        left.select("uper(s)")
    with pytest.raises(UserError, match="no column kk"):
        left.group_by("kk")
    with pytest.raises(UserError, match="keys of different types"):
        left.join(right, left_on="k", right_on="s")
    with pytest.raises(UserError, match="unknown kind of join"):
        left.join(right, on="k", how="sideways")
    assert ws.runs() == []


def test_a_dataset_whose_file_changed_is_refused_and_never_answered_from_old_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"k": [1, 1, 2]}), path)
    long_ago = path.stat().st_mtime - 100
    os.utime(path, (long_ago, long_ago))
    config = mr.Config().with_options(recent_change=0.001)
    ws = mr.open(tmp_path / "mill", spark, config=config)
    time.sleep(0.1)  # Past the recent window, so that only times tell the versions apart.
    counted = ws.read_parquet(path).group_by("k").agg(n="count(*)")
    assert counted.to_arrow().num_rows == 2

    pq.write_table(pa.table({"k": [7, 7, 7, 7]}), path)

    with pytest.raises(UserError, match="changed since the dataset was described"):
        counted.to_arrow()
    again = ws.read_parquet(path).group_by("k").agg(n="count(*)")
    assert again.to_arrow().to_pylist() == [{"k": 7, "n": 4}]
