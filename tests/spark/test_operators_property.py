"""Every operator and every kind of join against Spark, on random tables and in random pipelines.

A failure names its seed and the steps; `random_pipeline(seed, ...)` builds the same one again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from tests.laws import few_quick, seeds
from tests.spark.dataset_kit import write
from tests.spark.differential import (
    CONFIGS,
    POOLS,
    assert_same,
    in_this_process,
    in_zone,
    quick,
    random_table,
)
from tests.spark.pipelines import random_pipeline

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import TaskFailed

pytestmark = pytest.mark.spark

SEEDS = 5
TABLES = {
    "many": (random_table(1, 200, values=9), 3),
    "some": (random_table(2, 60, values=6), 2),
    "none": (random_table(3, 0, values=5), 1),
    "one": (random_table(4, 1, values=1, nulls=0), 1),
    "mostly null": (random_table(5, 40, values=5, nulls=0.5, empty="i"), 4),
    "doubled": (random_table(6, 120, values=3, nulls=0), 2),
}
HOWS = ["inner", "left", "right", "full", "semi", "anti"]


@pytest.fixture(scope="module", autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    with quick(spark), in_zone(spark, "Europe/Berlin"):
        yield


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    return [write(folder / name, table, files) for name, (table, files) in TABLES.items()]


@pytest.fixture(scope="module")
def frames(spark: SparkSession, paths: list[str]) -> list[DataFrame]:
    return [spark.read.parquet(path).coalesce(1).cache() for path in paths]


@pytest.fixture(scope="module")
def datasets(
    spark: SparkSession, paths: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Dataset]]:
    found = {}
    for name, config in CONFIGS.items():
        ws = mr.open(tmp_path_factory.mktemp("mill"), spark, config=config)
        found[name] = [ws.read_parquet(path) for path in paths]
    return found


def compare(
    seed: int, datasets: dict[str, list[Dataset]], frames: list[DataFrame], configs: list[str]
) -> None:
    built = {name: list(zip(datasets[name], frames, strict=True)) for name in configs}
    lines = {name: random_pipeline(seed, tables) for name, tables in built.items()}
    line = lines[configs[0]]
    expected = line.theirs.toArrow()
    for name, one in lines.items():
        what = "\n".join([f"seed {seed}, {name}", *one.steps])
        try:
            found = one.ours.to_arrow()
        except TaskFailed as error:
            raise AssertionError(what) from error
        assert_same(found, expected, what, ordered=one.ordered)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_pipelines_have_sparks_rows(
    seed: int, datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    with in_this_process():
        some = [list(CONFIGS)[seed % 3], list(CONFIGS)[3 + seed // 3 % 3]]
        compare(seed, datasets, frames, some)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(200, first=SEEDS))
def test_many_more_random_pipelines_have_sparks_rows(
    seed: int, datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    with in_this_process():
        compare(seed, datasets, frames, list(CONFIGS))


def test_a_random_pipeline_on_sparks_tasks(
    datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    compare(0, datasets, frames, ["seven partitions"])


@pytest.mark.parametrize("turns", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", POOLS)
def test_joins_on_every_type_of_key(
    key: str, turns: int, datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    """A quick run has each type in one kind of join, over two ways of running it."""
    number = list(POOLS).index(key)
    sides = [(0, 1), (1, 5), (4, 0), (0, 2), (2, 1)]
    for turn in [(number + turn) % 3 for turn in range(turns)]:
        how = HOWS[(number + 2 * turn) % len(HOWS)]
        one, two = sides[(number + turn) % len(sides)]
        left, right = (frames[side].select("id", key) for side in (one, two))
        right = right.withColumnRenamed("id", "id_right")
        expected = left.join(right, key, how).toArrow()
        with in_this_process():
            for config in list(CONFIGS)[turn::3]:
                ours, others = (datasets[config][side].select("id", key) for side in (one, two))
                others = others.rename(id="id_right")
                found = ours.join(others, on=key, how=how).to_arrow()
                assert_same(found, expected, f"{how} join on {key}, {config}, {(one, two)}")


@pytest.mark.parametrize("turns", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", POOLS)
def test_groups_of_every_type_of_key(
    key: str, turns: int, datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    """A quick run has each type over two ways of running it, a slow one over all six."""
    number = list(POOLS).index(key)
    asked = {"n": "count(*)", "low": "min(id)", "high": f"max({key})", "kinds": "count(DISTINCT s)"}
    listed = [fn.expr(text).alias(name) for name, text in asked.items()]
    expected = frames[0].groupBy(key).agg(*listed).toArrow()
    turned = [list(CONFIGS)[(number + turn) % 3 :: 3] for turn in range(turns)]
    with in_this_process():
        for config in chain(*turned):
            found = datasets[config][0].group_by(key).agg(**asked).to_arrow()
            assert_same(found, expected, f"{key}, {config}")


@pytest.mark.parametrize("config", few_quick(CONFIGS, 2))
def test_a_condition_may_name_a_column_that_is_read_on_both_sides_for_another_reason(
    config: str, datasets: dict[str, list[Dataset]], frames: list[DataFrame]
) -> None:
    left = datasets[config][0].select("id", "i", "s", "h")
    right = datasets[config][1].select("i", "s", "h").repartition(2, "h")
    one, two = frames[0].select("id", "i", "s", "h"), frames[1].select("i", "s", "h")
    two = two.toDF("i_right", "s_right", "h_right")
    expected = one.join(two, fn.expr("i = i_right AND s = s_right AND h <= 0"), "semi").toArrow()

    with in_this_process():
        found = left.join(
            right, left_on=["i", "s"], right_on=["i", "s"], how="semi", condition="h <= 0"
        ).to_arrow()

    assert found.num_rows > 0
    assert_same(found, expected)


def test_equal_and_unequal_answers_are_told_apart() -> None:
    one = pa.table({"a": [1.0, float("nan"), -0.0], "b": ["x", None, "z"]})

    assert_same(one.take([2, 0, 1]), one)
    for other in (
        one.slice(1),
        one.rename_columns(["a", "c"]),
        one.set_column(0, "a", pa.array([1.0, float("nan"), 1e-6])),
        one.set_column(1, "b", pa.array(["x", None, None], pa.string())),
        one.set_column(0, "a", pa.array([1.0, float("nan"), 0.0], pa.float32())),
    ):
        with pytest.raises(AssertionError):
            assert_same(other, one)
    with pytest.raises(AssertionError):
        assert_same(one.take([2, 0, 1]), one, ordered=True)


@pytest.mark.parametrize("config", few_quick(CONFIGS, 2))
def test_a_group_of_both_zeros_shows_the_positive_one(
    config: str, spark: SparkSession, tmp_path: Path
) -> None:
    zeros = pa.table({"f": [-0.0, 0.0], "g": pa.array([-0.0, 0.0], pa.float32())})
    path = write(tmp_path / "zeros", zeros)
    frame = spark.read.parquet(path)
    expected = [frame.distinct(), frame.groupBy("f").count(), frame.groupBy("g").count()]
    with mr.open(tmp_path / "mill", spark, config=CONFIGS[config]) as ws, in_this_process():
        rows = ws.read_parquet(path)
        counts = [rows.group_by(key).agg(count="count(*)") for key in ("f", "g")]
        for ours, theirs in zip([rows.distinct(), *counts], expected, strict=True):
            assert str(ours.to_arrow().to_pylist()) == str(theirs.toArrow().to_pylist())
