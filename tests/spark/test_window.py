"""Windows and distinct on columns: Spark's answers, or the same answer on any number of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.dataset_kit import CONFIGS, write
from tests.spark.differential import assert_same, quick, random_table

import millrace as mr

pytestmark = pytest.mark.spark

RANKS = {
    "n": "rank(){}",
    "dense": "dense_rank(){}",
    "share": "percent_rank(){}",
    "below": "cume_dist(){}",
}
SUMS = {
    "total": "sum(i){}",
    "wide": "sum(h){}",
    "sum_d": "sum(d){}",
    "sum_f": "sum(f){}",
    "rows": "count(*){}",
    "known": "count(s){}",
    "low": "min(f){}",
    "high": "max(s){}",
    "mean": "avg(l){}",
    "mean_d": "avg(d){}",
    "mean_g": "avg(g){}",
    "spread": "stddev(i){}",
    "spread_f": "var_pop(f){}",
    "every_one": "bool_and(t){}",
    "ratio": "sum(i){0} / count(*){0} + i",
}
TURNS = {
    "place": "row_number(){}",
    "quarter": "ntile(4){}",
    "before": "lag(h){}",
    "change": "i - lag(i, 2, 100){}",
    "behind": "lead(at, 3){}",
    "known": "lag(s, 2) IGNORE NULLS{}",
    "other": "lead(d, 1, i){}",
    "back": "lag(y, -1){}",
}
VALUES = {
    "one": "first_value(s){}",
    "last": "last_value(id){}",
    "third": "nth_value(id, 3){}",
    "said": "last(d, true){}",
    "begun": "first_value(f) IGNORE NULLS{}",
    "second": "nth_value(s, 2) IGNORE NULLS{}",
}


@dataclass(frozen=True)
class Case:
    """Columns over a window; `{}` is where Spark has OVER."""

    columns: dict[str, str]
    by: list[str]
    order: list[str]
    frame: str | None = None


def rows(text: str) -> str:
    return f"ROWS BETWEEN {text}"


def ranged(text: str) -> str:
    return f"RANGE BETWEEN {text}"


UNIQUE = {**TURNS, **RANKS, **SUMS, **VALUES}
FRAMED = {**SUMS, **VALUES}
CASES = [
    Case({**RANKS, **SUMS}, ["s"], ["f"]),
    Case({**RANKS, **SUMS}, ["f"], ["g DESC", "d"]),
    Case({**RANKS, **SUMS}, [], ["h", "at DESC"]),
    Case(UNIQUE, ["i"], ["f DESC NULLS FIRST", "id"]),
    Case(UNIQUE, ["at", "t"], ["id DESC"]),
    Case(UNIQUE, [], ["length(s)", "day DESC NULLS FIRST", "id"]),
    Case(SUMS, ["local", "d"], []),
    Case(SUMS, [], []),
    Case(FRAMED, ["s"], ["g", "id"], rows("2 PRECEDING AND CURRENT ROW")),
    Case(FRAMED, ["b"], ["id"], rows("1 FOLLOWING AND 3 FOLLOWING")),
    Case(FRAMED, ["b"], ["id"], rows("UNBOUNDED PRECEDING AND 2 PRECEDING")),
    Case(FRAMED, ["h"], ["at", "id"], rows("CURRENT ROW AND UNBOUNDED FOLLOWING")),
    Case(FRAMED, ["t"], ["id"], ranged("3 PRECEDING AND 5 FOLLOWING")),
    Case(FRAMED, ["t"], ["id DESC"], ranged("UNBOUNDED PRECEDING AND 7 PRECEDING")),
    Case(SUMS, ["s"], ["f"], ranged("0.5 PRECEDING AND 1 FOLLOWING")),
    Case(SUMS, ["s"], ["g DESC"], ranged("CURRENT ROW AND UNBOUNDED FOLLOWING")),
    Case(SUMS, ["s"], ["d"], ranged("1.25 PRECEDING AND CURRENT ROW")),
    Case(SUMS, [], ["h DESC"], ranged("0 PRECEDING AND 30000000000000000 FOLLOWING")),
    Case(SUMS, ["t"], ["l"], ranged("4000000007 PRECEDING AND CURRENT ROW")),
    Case(SUMS, ["t"], ["day"], ranged("2 PRECEDING AND 1 FOLLOWING")),
    Case(SUMS, ["t"], ["day DESC"], ranged("INTERVAL 1 MONTH PRECEDING AND CURRENT ROW")),
    Case(SUMS, ["t"], ["at"], ranged("INTERVAL 90 MINUTES PRECEDING AND CURRENT ROW")),
    Case(SUMS, ["t"], ["at"], ranged("INTERVAL '1' DAY PRECEDING AND INTERVAL 1 DAY FOLLOWING")),
    Case(
        SUMS, ["t"], ["local"], ranged("INTERVAL 2 HOURS PRECEDING AND INTERVAL 5 HOURS FOLLOWING")
    ),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data") / "rows", random_table(1, 160, values=9))


@pytest.fixture(scope="module")
def berlin(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture(scope="module")
def answers(spark: SparkSession, berlin: None, path: str) -> list[pa.Table]:
    del berlin
    spark.read.parquet(path).coalesce(1).cache().createOrReplaceTempView("rows_in_windows")
    with quick(spark):
        return [spark.sql(in_spark(case)).toArrow() for case in CASES]


def in_spark(case: Case) -> str:
    listed = ", ".join(f"{text.format(' OVER w')} AS {name}" for name, text in case.columns.items())
    parts = [f"PARTITION BY {', '.join(case.by)}"] if case.by else []
    parts += [f"ORDER BY {', '.join(case.order)}"] if case.order else []
    parts += [case.frame] if case.frame else []
    return f"SELECT id, {listed} FROM rows_in_windows WINDOW w AS ({' '.join(parts)})"


@pytest.mark.parametrize("config", ["one task", "cut up"])
@pytest.mark.usefixtures("berlin")
def test_windows_have_sparks_values(
    spark: SparkSession, tmp_path: Path, path: str, answers: list[pa.Table], config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    table = ws.read_parquet(path)
    for case, expected in zip(CASES, answers, strict=True):
        if config == "cut up" and case.columns is SUMS and case.frame:
            continue  # Only where rows lie differs, and the other cases cover that.
        query = table.window(
            partition_by=case.by,
            order_by=case.order,
            frame=case.frame,
            **{name: text.format("") for name, text in case.columns.items()},
        ).select("id", *case.columns)
        assert_same(query.collect(), expected, str(case))
