"""As-of and interval joins: Spark's answers, on one task, on many, and with a side read by all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.laws import few_quick
from tests.spark.dataset_kit import write
from tests.spark.differential import CONFIGS, in_this_process, in_zone, quick, random_table

import millrace as mr
from millrace.datasets.dataset import Dataset

pytestmark = pytest.mark.spark

Bound = int | float | Decimal | str


@dataclass(frozen=True)
class AsOf:
    """An as-of join, and where it is run."""

    config: str
    on: str
    by: tuple[str, ...]
    direction: str
    tolerance: Bound | None = None
    how: str = "left"


@dataclass(frozen=True)
class Interval:
    """An interval join, and where it is run."""

    config: str
    on: str
    by: tuple[str, ...]
    lower: Bound
    upper: Bound
    how: str = "inner"


AS_OF = [
    AsOf("one task", "i", ("s",), "backward"),
    AsOf("two partitions", "l", ("d",), "forward", 4_000_000_007),
    AsOf("seven partitions", "f", ("s", "t"), "backward"),
    AsOf("broadcast", "g", ("day",), "forward", 0.25),
    AsOf("seven partitions", "d", ("i",), "nearest", Decimal("1.25"), "inner"),
    AsOf("measured", "h", ("y",), "nearest"),
    AsOf("skewed", "day", ("f",), "nearest", "2 days"),
    AsOf("seven partitions", "at", ("s",), "backward", "1 hour 30 minutes"),
    AsOf("broadcast", "at", (), "nearest", "24 hours", "inner"),
    AsOf("seven partitions", "local", (), "forward", "3 hours"),
]
INTERVALS = [
    Interval("one task", "i", ("s",), -1, 2, "left"),
    Interval("skewed", "l", ("d",), -4_000_000_007, 0),
    Interval("seven partitions", "f", ("s", "t"), -0.25, 0.5, "left"),
    Interval("broadcast", "h", ("day",), 0, Decimal("12345678901234567.125")),
    Interval("measured", "day", ("i",), "-1 month", "-1 day"),
    Interval("seven partitions", "at", ("s",), "-1 day", "90 minutes", "left"),
    Interval("two partitions", "local", (), "1 hour", "1 hour"),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("data")
    left = write(folder / "left", random_table(11, 250, values=30))
    right = write(folder / "right", random_table(12, 200, values=30))
    return left, right


@pytest.fixture
def berlin(spark: SparkSession, tables: tuple[str, str]) -> Iterator[SparkSession]:
    """A session where clocks change in the middle of the rows."""
    for name, path in zip(("l", "r"), tables, strict=True):
        spark.read.parquet(path).createOrReplaceTempView(name)
    with quick(spark), in_zone(spark, "Europe/Berlin"), in_this_process():
        yield spark


@contextmanager
def sides(
    spark: SparkSession, folder: Path, config: str, tables: tuple[str, str]
) -> Iterator[tuple[Dataset, Dataset]]:
    ws = mr.open(folder / "mill", spark, config=CONFIGS[config])
    left, right = (ws.read_parquet(path) for path in tables)
    yield left, right


def pairs(table: pa.Table) -> list[tuple[int, int | None]]:
    found = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(found, key=repr)


def moved(column: str, by: Bound) -> str:
    """A column plus an offset, as Spark writes it."""
    if isinstance(by, str):
        return f"({column} + INTERVAL '{by}')"
    return f"({column} + {by}BD)" if isinstance(by, Decimal) else f"({column} + ({by}))"


def back(by: Bound) -> Bound:
    return (
        " ".join(f"-{w}" if w.isdigit() else w for w in by.split()) if isinstance(by, str) else -by
    )


def asof_in_spark(case: AsOf) -> str:
    """All pairs in the right direction that are near enough; of each left row the nearest."""
    on = [f"l.{key} = r.{key}" for key in case.by]
    one, two = f"l.{case.on}", f"r.{case.on}"
    if case.direction == "backward":
        on, nearest = [*on, f"{two} <= {one}"], f"{two} DESC"
    elif case.direction == "forward":
        on, nearest = [*on, f"{two} >= {one}"], two
    else:
        number = {"at": "unix_micros({})", "local": "unix_micros({})", "day": "unix_date({})"}
        apart = number.get(case.on, "{}")
        on = [*on, f"{one} IS NOT NULL", f"{two} IS NOT NULL"]
        nearest = f"abs({apart.format(one)} - {apart.format(two)}), {two}"
    if case.tolerance is not None:
        low, high = moved(one, back(case.tolerance)), moved(one, case.tolerance)
        on.append(f"{two} BETWEEN {low} AND {high}")
    return (
        "SELECT lid, rid FROM (SELECT l.id AS lid, r.id AS rid, row_number() OVER "
        f"(PARTITION BY l.id ORDER BY {nearest}, r.id DESC) AS place "
        f"FROM l {case.how} JOIN r ON {' AND '.join(on)}) WHERE place = 1"
    )


@pytest.mark.parametrize("case", few_quick(AS_OF, 5), ids=str)
def test_as_of_joins_find_what_spark_finds_among_all_pairs(
    berlin: SparkSession, tmp_path: Path, tables: tuple[str, str], case: AsOf
) -> None:
    with sides(berlin, tmp_path, case.config, tables) as (left, right):
        found = left.join_asof(
            right,
            on=case.on,
            by=case.by or None,
            direction=case.direction,
            tolerance=case.tolerance,
            how=case.how,
        ).select("id", "id_right")

        assert pairs(found.to_arrow()) == pairs(berlin.sql(asof_in_spark(case)).toArrow())


@pytest.mark.parametrize("case", few_quick(INTERVALS, 4), ids=str)
def test_interval_joins_find_the_pairs_that_spark_finds(
    berlin: SparkSession, tmp_path: Path, tables: tuple[str, str], case: Interval
) -> None:
    on = [f"l.{key} = r.{key}" for key in case.by]
    low, high = moved(f"l.{case.on}", case.lower), moved(f"l.{case.on}", case.upper)
    on.append(f"r.{case.on} BETWEEN {low} AND {high}")
    expected = berlin.sql(
        f"SELECT l.id, r.id AS rid FROM l {case.how} JOIN r ON {' AND '.join(on)}"
    )

    with sides(berlin, tmp_path, case.config, tables) as (left, right):
        found = left.join_interval(
            right,
            left_on=case.on,
            right_on=case.on,
            by=case.by or None,
            lower=case.lower,
            upper=case.upper,
            how=case.how,
        ).select("id", "id_right")

        wanted = pairs(expected.toArrow())
        assert pairs(found.to_arrow()) == wanted
        assert any(two is not None for _, two in wanted)


def test_sparks_own_as_of_join_finds_the_same(
    berlin: SparkSession, tmp_path: Path, tables: tuple[str, str]
) -> None:
    """Spark leaves open which of equal rows it takes, so it is given the last of them."""
    berlin.conf.set("spark.sql.join.asofJoin.enabled", "true")

    with sides(berlin, tmp_path, "seven partitions", tables) as (left, right):
        for on, direction, compared in (("at", "backward", ">="), ("d", "forward", "<=")):
            expected = berlin.sql(
                "SELECT l.id, r.id AS rid FROM l LEFT ASOF JOIN "
                f"(SELECT max(id) AS id, s, {on} FROM r GROUP BY s, {on}) r "
                f"MATCH_CONDITION (l.{on} {compared} r.{on}) ON l.s = r.s"
            )
            found = left.join_asof(right, on=on, by="s", direction=direction)

            assert pairs(found.select("id", "id_right").to_arrow()) == pairs(expected.toArrow())


@pytest.mark.parametrize(
    "config", few_quick(["one task", "broadcast", "seven partitions", "skewed"], 2)
)
def test_of_equal_rows_the_last_one_of_the_input_counts_wherever_it_lies(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    random = np.random.default_rng(5)
    keys, times = random.integers(0, 5, 4000), random.integers(0, 9, 4000)
    last = {(k, t): row for row, (k, t) in enumerate(zip(keys, times, strict=True))}
    right = write(
        tmp_path / "right", pa.table({"k": keys, "t": times, "row": np.arange(4000)}), files=6
    )
    every = pa.table({"k": np.repeat(np.arange(5), 9), "t": np.tile(np.arange(9), 5)})
    left = write(tmp_path / "left", every)

    with sides(spark, tmp_path, config, (left, right)) as (ours, theirs):
        joined = ours.join_asof(theirs, on="t", by="k").to_arrow().to_pylist()

    assert {(row["k"], row["t"]): row["row"] for row in joined} == last
    assert len(joined) == len(last) == 45


@pytest.mark.parametrize("config", ["one task", "two partitions"])
def test_trades_and_quotes(spark: SparkSession, tmp_path: Path, config: str) -> None:
    trades = pa.table({"sym": ["a", "a", "a", "b", None], "t": [10, 30, 50, 70, 10]})
    quotes = pa.table(
        {
            "sym": ["a", "a", "a", "a", "b", None],
            "t": [5, 20, 40, 60, 20, 5],
            "price": [99, 100, 101, 103, 7, 8],
        }
    )
    paths = write(tmp_path / "trades", trades), write(tmp_path / "quotes", quotes)

    with sides(spark, tmp_path, config, paths) as (ours, theirs):
        joined = ours.join_asof(theirs, on="t", by="sym", tolerance=10)
        first, again = joined.run().stages, joined.run().stages
        empty = ours.join_asof(theirs.filter("t > 1000"), on="t", by="sym", direction="nearest")
        none = empty.to_arrow()

    assert joined.columns == ["sym", "t", "t_right", "price"]
    assert sorted(joined.to_arrow().to_pylist(), key=repr) == sorted(
        [
            {"sym": "a", "t": 10, "t_right": 5, "price": 99},
            {"sym": "a", "t": 30, "t_right": 20, "price": 100},
            {"sym": "a", "t": 50, "t_right": 40, "price": 101},
            {"sym": "b", "t": 70, "t_right": None, "price": None},
            {"sym": None, "t": 10, "t_right": None, "price": None},
        ],
        key=repr,
    )
    assert all(report.reused == 0 for report in first)
    assert all(report.ran == 0 for report in again)
    assert (none.num_rows, none["price"].null_count) == (5, 5)
