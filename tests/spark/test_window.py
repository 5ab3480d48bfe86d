"""Windows and distinct on columns: Spark's answers, or the same answer on any number of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.spark.dataset_kit import write
from tests.spark.differential import (
    CONFIGS,
    START,
    assert_same,
    in_this_process,
    in_zone,
    quick,
    random_table,
)
from tests.spark.spark_examples import type_text
from tests.unit.sql.aggregate_kit import same
from tests.unit.sql.example_kit import selected

import millrace as mr
from millrace.datasets.dataset import Dataset

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
    "some": "sum(d) FILTER (WHERE b > 0){}",
    "few": "count_if(b > 0){0} - count(*) FILTER (WHERE t){0}",
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
        SUMS, ["t"], ["local"], ranged("INTERVAL 2 HOURS PRECEDING AND INTERVAL 30 HOURS FOLLOWING")
    ),
    Case(
        SUMS,
        ["t"],
        ["moment"],
        ranged("INTERVAL 48 HOURS PRECEDING AND INTERVAL 23 HOURS FOLLOWING"),
    ),
    Case(SUMS, ["t"], ["moment DESC"], ranged("INTERVAL 1 DAY PRECEDING AND CURRENT ROW")),
]


def over(text: str) -> str:
    return f"OVER ({text})"


IN_ONE_LIST = [
    f"sum(i) {over('PARTITION BY s ORDER BY id')} - i",
    f"avg(d) {over('PARTITION BY t, i % 2 ORDER BY id DESC ROWS 3 PRECEDING')}",
    f"rank() {over('ORDER BY length(s) DESC NULLS FIRST, b')}",
    f"count(*) {over('PARTITION BY f')} + count(s) {over('PARTITION BY g')}",
    f"lag(s, 2, 'none') {over('PARTITION BY upper(s) ORDER BY at, id')}",
    f"lead(i) IGNORE NULLS {over('ORDER BY id')}",
    f"collect_list(i) {over('PARTITION BY b ORDER BY id')}",
    f"collect_list(id) {over('PARTITION BY s ORDER BY b')}",
    f"array_agg(s) {over('PARTITION BY b ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING')}",
    f"listagg(s, '-') {over('PARTITION BY b ORDER BY id')}",
    f"max_by(id, i * 1000 + id) {over('PARTITION BY t ORDER BY id')}",
    f"min_by(s, d) {over('PARTITION BY id ORDER BY id')}",
    f"corr(i, d) {over('PARTITION BY t ORDER BY id')}",
    f"regr_slope(i, b) {over('PARTITION BY t ORDER BY id ROWS 5 PRECEDING')}",
    f"corr(f, g) {over('PARTITION BY t ORDER BY id')}",
    f"skewness(b) {over('PARTITION BY t ORDER BY id')}",
    f"kurtosis(d) {over('PARTITION BY t')}",
    f"median(i) {over('PARTITION BY s')}",
    f"percentile(f, 0.3) {over('PARTITION BY s')}",
    f"percentile_cont(0.25) WITHIN GROUP (ORDER BY d) {over('PARTITION BY s')}",
    f"mode(i, true) {over('PARTITION BY s ORDER BY id')}",
    f"bit_xor(i) {over('PARTITION BY s ORDER BY id')}",
    f"try_sum(l) {over('PARTITION BY s ORDER BY id')}",
    f"stddev(l) FILTER (WHERE b > 0) {over('PARTITION BY t ORDER BY id')}",
    f"any_value(s) {over('PARTITION BY t ORDER BY id')}",
    f"nth_value(s, 2) IGNORE NULLS {over('PARTITION BY t ORDER BY id')}",
    f"sum(i) {over('PARTITION BY t ORDER BY day RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING')}",
    f"count(*) {over('PARTITION BY t ORDER BY at RANGE INTERVAL 1 DAY PRECEDING')}",
    f"min(at) {over('PARTITION BY t ORDER BY id + 1 RANGE BETWEEN 3 PRECEDING AND 2 PRECEDING')}",
    f"ntile(3) {over('PARTITION BY y ORDER BY id')}",
    f"percent_rank() {over('PARTITION BY t ORDER BY d, h')}",
    f"cume_dist() {over('PARTITION BY t ORDER BY d DESC')}",
    f"approx_percentile(i, 0.5) {over('PARTITION BY s ORDER BY id')}",
    f"bool_and(b > -4) {over('PARTITION BY s ORDER BY id')}",
    f"sum(i) {over('ORDER BY 1')}",
]


@pytest.fixture(scope="module", autouse=True)
def berlin(spark: SparkSession) -> Iterator[None]:
    with in_zone(spark, "Europe/Berlin"):
        yield


@pytest.fixture(scope="module")
def table() -> pa.Table:
    moments = [START + timedelta(minutes=30 * n - 1440) for n in range(160)]
    rows = random_table(1, 160, values=9)
    return rows.append_column("moment", pa.array(moments, pa.timestamp("us", "UTC")))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> str:
    return write(tmp_path_factory.mktemp("data") / "rows", table)


@pytest.fixture(scope="module")
def answers(spark: SparkSession, path: str) -> list[pa.Table]:
    spark.read.parquet(path).coalesce(1).cache().createOrReplaceTempView("rows_in_windows")
    with quick(spark):
        return [spark.sql(in_spark(case)).toArrow() for case in CASES]


def in_spark(case: Case) -> str:
    listed = ", ".join(f"{text.format(' OVER w')} AS {name}" for name, text in case.columns.items())
    parts = [f"PARTITION BY {', '.join(case.by)}"] if case.by else []
    parts += [f"ORDER BY {', '.join(case.order)}"] if case.order else []
    parts += [case.frame] if case.frame else []
    return f"SELECT id, {listed} FROM rows_in_windows WINDOW w AS ({' '.join(parts)})"


def in_millrace(rows: Dataset, case: Case) -> pa.Table:
    columns = {name: text.format("") for name, text in case.columns.items()}
    windows = rows.window(partition_by=case.by, order_by=case.order, frame=case.frame, **columns)
    return windows.select("id", *columns).to_arrow()


@pytest.mark.parametrize(
    ("config", "every"),
    [
        ("one task", 4),
        ("seven partitions", 4),
        pytest.param("one task", 1, marks=pytest.mark.slow),
        pytest.param("seven partitions", 1, marks=pytest.mark.slow),
    ],
)
def test_windows_have_sparks_values(
    spark: SparkSession, tmp_path: Path, path: str, answers: list[pa.Table], config: str, every: int
) -> None:
    with mr.open(tmp_path / "mill", spark, config=CONFIGS[config]) as ws, in_this_process():
        rows = ws.read_parquet(path)
        for case, expected in list(zip(CASES, answers, strict=True))[::every]:
            assert_same(in_millrace(rows, case), expected, str(case))


def test_windows_of_a_select_list_have_sparks_values(
    spark: SparkSession, tmp_path: Path, table: pa.Table, path: str
) -> None:
    spark.read.parquet(path).coalesce(1).createOrReplaceTempView("rows_in_lists")
    texts = ["id", *IN_ONE_LIST]
    listed = ", ".join(f"{text} AS c{n}" for n, text in enumerate(texts))
    with quick(spark):
        theirs = spark.sql(f"SELECT {listed} FROM rows_in_lists").toArrow().sort_by("c0")
    mine = selected(texts, table, tmp_path, "Europe/Berlin").sort_by("c0")
    wrong = []
    for text, one, other in zip(texts, mine.columns, theirs.columns, strict=True):
        kinds = type_text(one.type), type_text(other.type)
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        unlike = [] if kinds[0] == kinds[1] else [kinds]
        unlike += [pair for pair in pairs if not same(*pair, error=1e-9)]
        wrong += [f"{text}: (one, other) {unlike[:3]}"] if unlike else []
    assert wrong == []


def test_windows_on_sparks_tasks(
    spark: SparkSession, tmp_path: Path, path: str, answers: list[pa.Table]
) -> None:
    with mr.open(tmp_path / "mill", spark, config=CONFIGS["seven partitions"]) as ws:
        rows = ws.read_parquet(path)
        assert_same(in_millrace(rows, CASES[3]), answers[3])


@pytest.mark.slow
def test_ties_come_in_the_order_of_the_input_however_rows_are_spread(
    spark: SparkSession, tmp_path: Path
) -> None:
    many = pa.table({"id": range(20_000), "k": [n % 7 for n in range(20_000)]})
    path = write(tmp_path / "many", many.append_column("o", pc.bit_wise_and(many["id"], 8)))
    expected = None
    for number, config in enumerate(CONFIGS.values()):
        ws = mr.open(tmp_path / f"mill{number}", spark, config=config)
        with ws, in_this_process():
            windows = ws.read_parquet(path).window(
                partition_by="k", order_by="o", n="row_number()", last="last_value(id)"
            )
            found = windows.sort("k", "o", "id").to_arrow()
        ordered = found.sort_by([("k", "ascending"), ("n", "ascending")])
        expected = expected or ordered.to_pydict()
        assert ordered["id"].to_pylist() == found["id"].to_pylist()
        assert ordered.to_pydict() == expected


@pytest.mark.parametrize("config", ["one task", "two partitions", "seven partitions"])
def test_distinct_on_columns_keeps_the_first_row_of_each(
    spark: SparkSession, tmp_path: Path, path: str, table: pa.Table, config: str
) -> None:
    with mr.open(tmp_path / "mill", spark, config=CONFIGS[config]) as ws, in_this_process():
        for keys in (["s"], ["f", "t"], ["at", "d"], ["h"], ["y", "g", "local"], ["i"]):
            found = ws.read_parquet(path).drop_duplicates(*keys).to_arrow()

            firsts: dict[str, dict[str, object]] = {}
            for row in table.to_pylist():
                # What is equal as a key looks alike: 0.0 and -0.0, and each NaN.
                key = repr([0.0 if row[name] == 0.0 else row[name] for name in keys])
                firsts.setdefault(key, row)
            assert_same(found, pa.Table.from_pylist(list(firsts.values()), table.schema))
            if config == "one task":
                with quick(spark):
                    theirs = spark.read.parquet(path).dropDuplicates(keys).count()
                assert found.num_rows == theirs
