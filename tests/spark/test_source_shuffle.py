"""`df.write.format("millrace").option("shuffle", name)`: DataFrames into keyed shuffles."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from tests.spark.types_kit import TYPES

import millrace as mr
from millrace.cli.main import cli

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark)


def numbers(spark: SparkSession, count: int = 200) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr("id", "id % 7 AS k")


def write(frame: DataFrame, ws: mr.Workspace, *, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("millrace").mode(mode)
    for name, value in {"keyBy": "k", "partitions": 3, **options}.items():
        writer = writer.option(name, str(value))
    writer.save(ws.path)


def read(spark: SparkSession, ws: mr.Workspace, shuffle: object) -> DataFrame:
    reader: DataFrameReader = spark.read.format("millrace").option("shuffle", str(shuffle))
    return reader.load(ws.path)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


def states(ws: mr.Workspace) -> list[str]:
    listed = CliRunner().invoke(cli, ["shuffle", "ls", ws.path, "--json"])
    return [row["state"] for row in json.loads(listed.output)]


def test_a_frame_becomes_a_shuffle_of_the_workspace_like_any_other(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    frame = numbers(spark)
    write(frame, ws, shuffle="by-k")

    made = ws.open_shuffle("by-k")
    assert [run.query_id for run in ws.runs()] == [made.query_id]
    assert made.verify().ok
    expected = frame.selectExpr("id", "k", "pmod(hash(k), 3) AS p").toArrow()
    for number in range(3):
        mine = expected.filter(pa.compute.equal(expected["p"], number))
        assert sorted(made.read(number)["id"].to_pylist()) == mine["id"].to_pylist()
    by_name, by_number = read(spark, ws, "by-k"), read(spark, ws, made.query_id)
    assert ids(by_name) == ids(by_number) == list(range(200))
    assert by_name.where("spark_partition_id() != pmod(hash(k), 3)").count() == 0
    assert by_name.where("spark_partition_id() = pmod(hash(k), 3)").count() == 200


def test_commands_know_it_by_its_name(spark: SparkSession, ws: mr.Workspace) -> None:
    write(numbers(spark), ws, shuffle="by k")
    (row,) = json.loads(CliRunner().invoke(cli, ["shuffle", "ls", ws.path, "--json"]).output)
    assert (row["name"], row["state"], row["rows"]) == ("by k", "finished", 200)
    assert "by k" in CliRunner().invoke(cli, ["shuffle", "ls", ws.path]).output
    shown = CliRunner().invoke(cli, ["shuffle", "show", ws.path, "by k", "--json"])
    assert json.loads(shown.output)["run"] == row["run"]
    assert CliRunner().invoke(cli, ["shuffle", "verify", ws.path, "by k"]).exit_code == 0


def test_all_types_go_there_and_back(spark: SparkSession, ws: mr.Workspace) -> None:
    frame = spark.createDataFrame(TYPES).coalesce(1)
    write(frame, ws, shuffle="types", keyBy="s, i64", partitions=1)
    assert repr(read(spark, ws, "types").collect()) == repr(frame.collect())


def test_a_frame_without_rows_is_an_empty_shuffle(spark: SparkSession, ws: mr.Workspace) -> None:
    write(spark.createDataFrame([], "id long, k long"), ws, shuffle="none")
    write(numbers(spark).where("id < 0"), ws, shuffle="filtered")
    assert read(spark, ws, "none").collect() == read(spark, ws, "filtered").collect() == []
    assert ws.open_shuffle("none").partitions == 3


@pytest.mark.slow
def test_a_name_is_taken_once_and_can_be_given_anew(spark: SparkSession, ws: mr.Workspace) -> None:
    write(numbers(spark, 10), ws, shuffle="n")
    broken = numbers(spark).where("raise_error('a row was made') IS NULL")
    with pytest.raises(PySparkException, match="'n' is there already"):
        write(broken, ws, shuffle="n")
    write(numbers(spark, 20), ws, shuffle="n", mode="overwrite")
    assert ids(read(spark, ws, "n")) == list(range(20))
    first = ws.runs()[0].query_id
    assert ids(read(spark, ws, first)) == list(range(10))
    # What is written over is read meanwhile.
    write(read(spark, ws, "n").where("id < 5"), ws, shuffle="n", mode="overwrite")
    assert ids(read(spark, ws, "n")) == list(range(5))
    with pytest.raises(PySparkException, match="found: n\n"):
        read(spark, ws, "m").collect()


def test_a_try_that_failed_leaves_one_copy(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    mark = str(tmp_path / "failed")

    def fails_once(batches):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        for batch in batches:
            yield batch
        if batch["id"][0].as_py() == 0 and not os.path.exists(mark):
            with open(mark, "x", encoding="utf-8"):
                pass
            raise RuntimeError("this try fails")

    write(numbers(spark).mapInArrow(fails_once, "id long, k long"), ws, shuffle="n")
    assert Path(mark).exists()
    made = ws.open_shuffle("n")
    assert ids(read(spark, ws, "n")) == list(range(200))
    assert sorted(choice.attempt.attempt for choice in made.manifest.chosen) == [1, 1, 1, 2]


@pytest.mark.slow
def test_a_write_that_fails_leaves_no_shuffle_and_its_name_free(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    broken = numbers(spark).where("id < 199 OR raise_error('broken') IS NULL")
    with pytest.raises(PySparkException, match="broken"):
        write(broken, ws, shuffle="n")
    assert "finished" not in states(ws)
    with pytest.raises(PySparkException, match="none that has a name"):
        read(spark, ws, "n").collect()
    write(numbers(spark), ws, shuffle="n")
    assert ids(read(spark, ws, "n")) == list(range(200))


def test_what_cannot_be_written_is_said_before_any_row_is_made(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    broken = numbers(spark).where("raise_error('a row was made') IS NULL")
    with pytest.raises(PySparkException, match="nobody"):
        write(broken, ws, shuffle="n", keyBy="nobody")
    assert ws.runs() == []
