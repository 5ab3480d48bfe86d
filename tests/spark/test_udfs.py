"""Users' functions in expressions give Spark's rows, for every kind of function."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.types import Row
from sqlglot import exp
from tests.laws import few_quick
from tests.spark.dataset_kit import CONFIGS

import millrace as mr
from millrace import functions as mr_functions
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.errors import FunctionFailed
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import udf_tree, with_udf_columns
from millrace.plan.builders.operators import project
from millrace.plan.nodes.user_code.udf_calls import AddColumns
from millrace.plan.nodes.user_code.user_function import FunctionCall
from millrace.plan.relation import relation_of
from millrace.spark.frames.rows_as_frames import of_table
from millrace.spark.udfs.pyspark_functions import function_of_udf

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
PANDAS_UDF = F.pandas_udf  # type: ignore[attr-defined]
ARROW_UDF = F.arrow_udf  # type: ignore[attr-defined]
UTC = dt.UTC
NAIVE = dt.datetime(2020, 3, 29, 2, 30)  # noqa: DTZ001 - of no zone
TABLE = pa.table(
    {
        "i": pa.array([1, None, -3, 2**31 - 1], pa.int32()),
        "l": pa.array([1, None, 2**62, -5], pa.int64()),
        "d": pa.array([1.5, None, float("nan"), -0.0]),
        "s": pa.array(["a", None, "", "täxt"]),
        "b": pa.array([b"x", None, b"", b"\xff"]),
        "t": pa.array(
            [dt.datetime(2020, 3, 29, 1, 30, tzinfo=UTC), None]
            + [dt.datetime(1900, 1, 1, tzinfo=UTC)] * 2,
            pa.timestamp("us", "UTC"),
        ),
        "n": pa.array([NAIVE] + [None] * 3, pa.timestamp("us")),
        "day": pa.array([dt.date(2020, 2, 29), None] + [dt.date(1, 1, 1)] * 2),
        "m": pa.array([decimal.Decimal("1.25"), None] + [decimal.Decimal("-9.99")] * 2),
        "a": pa.array([[1, None], None, [], [3]], pa.list_(pa.int64())),
        "st": pa.array([{"x": 1, "y": "q"}, None, {"x": None, "y": ""}, {"x": 2, "y": None}]),
    }
)


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


def called(dataset: Dataset, udf: Any, *columns: str) -> Dataset:  # noqa: ANN401 - PySpark's
    """The results of a function over columns, as column r."""
    tree = udf_tree(function_of_udf(udf), [exp.column(name) for name in columns])
    node, (result,) = with_udf_columns(BuildContext(), plan_of(dataset), [tree])
    plan = project(BuildContext(), node, [("r", result)])
    return Dataset(relation_of(plan), dataset._runner)


def rows(dataset: Dataset) -> list[Any]:
    table = pa.Table.from_batches(dataset.to_batches(), dataset.arrow_schema)
    return list(table["r"].to_pylist())


def _text(*values: Any) -> str:  # noqa: ANN401 - anything
    return repr(values)


def _lengths(texts: pd.Series) -> pd.Series:
    return texts.str.len()


def _add_one(numbers: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for part in numbers:
        yield part + 1


def _doubled(values: pa.Array) -> pa.Array:
    return pc.multiply(values, 2)


def _doubled_all(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for part in parts:
        yield pc.multiply(part, 2)


def _struct(numbers: pd.Series, texts: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"x": numbers.fillna(0).astype("int64"), "y": texts})


UDFS: dict[str, Callable[[], tuple[Any, tuple[str, ...]]]] = {
    "values as they come": lambda: (F.udf(_text, "string"), tuple(TABLE.column_names)),
    "pickled values": lambda: (F.udf(_text, "string", useArrow=False), tuple(TABLE.column_names)),
    "numbers": lambda: (F.udf(lambda x: None if x is None else x + 1, "long"), ("l",)),
    "a struct": lambda: (F.udf(lambda x: Row(q=x, p=[str(x)]), "q int, p array<string>"), ("i",)),
    "times": lambda: (F.udf(lambda t: t, "timestamp"), ("t",)),
    "pickled times": lambda: (F.udf(lambda t: t, "timestamp", useArrow=False), ("t",)),
    "no arguments": lambda: (F.udf(lambda: 7, "int"), ()),
    "pandas": lambda: (PANDAS_UDF(_lengths, "double"), ("s",)),
    "pandas struct": lambda: (PANDAS_UDF(_struct, "x long, y string"), ("i", "s")),
    "pandas iterator": lambda: (PANDAS_UDF(_add_one, "double"), ("d",)),
    "arrow": lambda: (ARROW_UDF(_doubled, "double"), ("d",)),
    "arrow iterator": lambda: (ARROW_UDF(_doubled_all, "double"), ("d",)),
}
WRONG_TYPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text for a number": (lambda _: "5", "int"),
    "a fraction for a number": (lambda _: 2.7, "int"),
    "a number for a fraction": (lambda _: 2, "double"),
    "a number for text": (lambda _: 5, "string"),
    "true for text": (lambda _: True, "string"),
    "true for a number": (lambda _: True, "int"),
    "a long for an int": (lambda _: 2**40 + 3, "int"),
    "a fraction for a decimal": (lambda _: 1.5, "decimal(10,2)"),
    "a tuple for an array": (lambda _: (1, 2), "array<int>"),
    "a dict for a struct": (lambda _: {"p": 1, "q": "2"}, "q string, p int"),
    "text for bytes": (lambda _: "ä", "binary"),
    "wrong items": (lambda _: [1, "2", None], "array<int>"),
}


def in_process(udf: Any, columns: tuple[str, ...], zone: str) -> str:  # noqa: ANN401 - PySpark's
    """The results as a task makes them, or that there are none."""
    function = function_of_udf(udf)
    call = FunctionCall(column="r", function=function, arguments=columns)
    schema = pa.schema([("r", function.result)])
    added = AddColumns((), (call,), TABLE.schema, schema, zone)
    batches = TABLE.combine_chunks().to_batches(max_chunksize=3)
    try:
        return repr([value for made in added(iter(batches)) for value in made["r"].to_pylist()])
    except Exception:  # noqa: BLE001 - of any kind
        return "an error"


@pytest.mark.parametrize("zone", ["UTC", pytest.param("America/New_York", marks=pytest.mark.slow)])
def test_functions_of_every_kind_give_sparks_rows(spark: SparkSession, zone: str) -> None:
    udfs = {name: make() for name, make in UDFS.items()}
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = of_table(spark, TABLE).coalesce(1)
        theirs = frame.select(*(udf(*columns).alias(n) for n, (udf, columns) in udfs.items()))
        expected = {name: repr(column.to_pylist()) for name, column in _columns(theirs.toArrow())}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {n: in_process(udf, columns, zone) for n, (udf, columns) in udfs.items()} == expected


def _columns(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(table.column_names, table.columns, strict=True))


@pytest.mark.slow  # A job for each of them: many fail.
@pytest.mark.parametrize("arrow", [True, False])
def test_results_of_another_type_become_what_they_become_in_spark(
    spark: SparkSession,
    arrow: bool,  # noqa: FBT001 - a case
) -> None:
    mine, theirs = {}, {}
    for name, (function, result) in WRONG_TYPES.items():
        udf = F.udf(function, result, useArrow=arrow)
        mine[name] = in_process(udf, ("i",), "UTC")
        try:
            rows_of_spark = of_table(spark, TABLE).select(udf("i").alias("r")).toArrow()["r"]
            theirs[name] = repr(rows_of_spark.to_pylist())
        except Exception:  # noqa: BLE001 - Spark's, of any kind
            theirs[name] = "an error"
    assert mine == theirs


def _scaled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(d=frame["d"] - frame["d"].mean())[["k", "d"]]


def _counted(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "n": [len(frame)]})


def _arrow_counted(table: pa.Table) -> pa.Table:
    return pa.table({"n": pa.array([table.num_rows], pa.int64())})


def _mean(values: pd.Series) -> float:
    return float(values.mean())


def _doubled_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(d=frame["d"] * 2)


def _first_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["k"]).slice(0, 1)


GROUPS = pa.table(
    {
        "k": pa.array([1.0, None, float("nan"), 0.0, -0.0, 1.0, float("nan"), None, 7.0] * 40),
        "d": pa.array([float(n) for n in range(360)]),
    }
)


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(
        repr([0.0 if value == 0.0 else value for value in row.values()])
        for row in table.to_pylist()
    )


def _count_pairs(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "l": [left["d"].sum()], "r": [len(right)]})


def _arrow_pairs(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table(
        {"l": pa.array([left.num_rows], pa.int64()), "r": pa.array([right.num_rows], pa.int64())}
    )


def _arrow_mean(values: pa.Array) -> float:
    return float(pc.mean(values).as_py() or 0.0)


OTHERS = pa.table(
    {
        "k": pa.array([None, 0.0, 1.0, float("nan"), 99.0] * 3),
        "d": pa.array([f"text {n}" for n in range(15)]),
    }
)
NUMBERED = pa.table(
    {
        "g": pa.array([n % 4 if n % 9 else None for n in range(60)]),
        "o": pa.array([n * 7 % 13 for n in range(60)]),
        "d": pa.array([float(n) for n in range(60)]),
    }
)
PAIRS = "k double, l double, r int"


OVER_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "groups of pandas": lambda _, t: t.groupBy("k").applyInPandas(_scaled, "k double, d double"),
    "groups with their key": lambda _, t: t.groupBy("k").applyInPandas(
        _counted, "k double, n long"
    ),
    "groups by a calculated key": lambda f, t: t.groupBy((f.col("d") % 3).alias("m")).applyInPandas(
        _counted, "k double, n long"
    ),
    "groups by a struct": lambda f, t: t.groupBy(f.struct("k")).applyInArrow(
        _arrow_counted, "n long"
    ),
    "groups of Arrow": lambda _, t: t.groupBy("k").applyInArrow(_arrow_counted, "n long"),
    "all rows": lambda _, t: t.groupBy().applyInArrow(_arrow_counted, "n long"),
    "rows of pandas": lambda _, t: t.mapInPandas(_doubled_frames, "k double, d double"),
}


@pytest.mark.parametrize("config", few_quick(["cut up", "one task"], 1))
def test_functions_over_groups_and_rows_give_sparks_rows(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    frame = of_table(spark, GROUPS).repartition(3)
    mine, theirs, on_spark = {}, {}, []
    for name, query in OVER_ROWS.items():
        dataset = query(mr_functions, ws.from_arrow(GROUPS))
        mine[name] = sorted_rows(dataset.to_arrow())
        theirs[name] = sorted_rows(query(F, frame).toArrow())
        on_spark += [name] if "on Spark" in str(dataset.explain()) else []
        assert dataset.run().ran == 0, f"{name}: equal code is not run again"
    assert mine == theirs
    assert on_spark == ["groups by a struct"]

    wrong = ws.from_arrow(GROUPS).mapInArrow(_first_batches, "k long")
    with pytest.raises(FunctionFailed, match="expected .'bigint'"):
        wrong.to_arrow()


@pytest.mark.parametrize("config", few_quick(["cut up", "one task"], 1))
def test_functions_over_pairs_of_groups_get_both(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    """The counts are those of Spark's rows with the same functions; null and NaN are keys."""
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    rows_of, others = ws.from_arrow(GROUPS), ws.from_arrow(OTHERS)
    pairs = rows_of.groupBy("k").cogroup(others.groupBy("k"))
    counted = pairs.applyInArrow(_arrow_pairs, "l long, r long")
    assert sorted_rows(counted.to_arrow()) == ["[0.0, 3]", "[40, 0.0]", *["[80, 3]"] * 4]
    summed = pairs.applyInPandas(_count_pairs, PAIRS)
    assert sorted_rows(summed.filter("k = 7 OR k = 99").to_arrow()) == [
        "[7.0, 7340.0, 0.0]",
        "[99.0, 0.0, 3]",
    ]
    assert counted.run().ran == 0
    assert "on Spark" not in str(counted.explain())

    unlike = rows_of.groupBy(F.col("d").cast("int")).cogroup(others.groupBy(F.length("d")))
    nothing = rows_of.groupBy("k").cogroup(others.where("k > 100").groupBy("k"))
    assert unlike.applyInArrow(_arrow_pairs, "l long, r long").count() == 360
    assert nothing.applyInArrow(_arrow_pairs, "l long, r long").count() == 5
    other_types = rows_of.groupBy("k").cogroup(others.groupBy("d"))
    assert "on Spark" in str(other_types.applyInArrow(_arrow_pairs, "l long, r long").explain())


def test_groups_with_nulls_stay_whole(ws: mr.Workspace) -> None:
    """Bytes that lie under a null are no part of a key."""
    values = pa.py_buffer(pa.array([5, 6, 7, 8], pa.int64()).buffers()[1])
    keys = pa.Array.from_buffers(pa.int64(), 4, [pa.py_buffer(bytes([0b1000])), values])
    rows_of = ws.from_arrow(pa.table({"k": keys, "d": [1.0, 2.0, 3.0, 4.0]}))
    counted = rows_of.groupBy("k").applyInPandas(_counted, "k double, n long")
    assert sorted_rows(counted.to_arrow()) == ["[8.0, 1]", "[None, 3]"]


def _windows(f: Any, w: Any) -> dict[str, Any]:  # noqa: ANN401 - modules of PySpark
    """Windows of every kind of frame."""
    by, ordered = w.partitionBy("g"), w.partitionBy("g").orderBy(f.col("o").desc(), "d")
    return {
        "whole": by,
        "of one group": w.partitionBy(f.lit(1)),
        "up to here": w.partitionBy("g").orderBy("o"),
        "rows": ordered.rowsBetween(-2, 1),
        "rows behind": ordered.rowsBetween(1, 2),
        "range": w.partitionBy("g").orderBy("o").rangeBetween(-3, 3),
        "whole in order": ordered.rowsBetween(w.unboundedPreceding, w.unboundedFollowing),
        "by a calculation": w.partitionBy(f.col("d") % 3).orderBy("d").rowsBetween(-1, 0),
    }


@pytest.mark.parametrize("config", few_quick(["cut up", "one task"], 1))
def test_functions_over_windows_give_sparks_values(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    answers = []
    for f, w, rows_of in (
        (mr_functions, mr.Window, ws.from_arrow(NUMBERED)),
        (F, SparkWindow, of_table(spark, NUMBERED)),
    ):
        mean, arrow_mean = f.pandas_udf(_mean, "double"), f.arrow_udf(_arrow_mean, "double")
        columns = [mean("d").over(over).alias(name) for name, over in _windows(f, w).items()]
        twice = (arrow_mean("d").over(w.partitionBy("g")) * 2).alias("Arrow")
        with_all = rows_of.select("g", "d", *columns).withColumn("Arrow", twice)
        answers.append(with_all.orderBy("d").toArrow().to_pylist())
    assert repr(answers[0]) == repr(answers[1])


def test_functions_stand_in_joins_sorts_and_groups(spark: SparkSession, tmp_path: Path) -> None:
    ws = mr.open(tmp_path / "mill", spark)
    small = NUMBERED.slice(0, 9).rename_columns(["h", "p", "e"])

    def queries(f: Any, t: Any, u: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        minus = f.udf(lambda x: None if x is None else -x, "long")
        near = f.udf(lambda x, y: x is not None and y is not None and abs(x - y) < 2, "boolean")
        mean = f.pandas_udf(_mean, "double")
        return {
            "a key of a join": t.join(u, minus(t["o"]) == minus(u["p"])).select("d", "e"),
            "both sides": t.join(u, near(t["o"], u["p"]) & (t["g"] == u["h"])).select("d", "e"),
            "a left join": t.join(u, (t["g"] == u["h"]) & (minus("p") < -3), "left").select(
                "d", "e"
            ),
            "a semi join": t.join(u, minus(t["o"]) == minus(u["p"]), "left_semi"),
            "an order": t.orderBy(minus("o"), minus("d").desc()).select("d"),
            "a key of groups": t.groupBy(minus("g").alias("m")).agg(f.sum(minus("o")).alias("s")),
            "all rows": t.select(mean("d").alias("m")),
        }

    mine = queries(mr_functions, ws.from_arrow(NUMBERED), ws.from_arrow(small))
    theirs = queries(F, of_table(spark, NUMBERED), of_table(spark, small))
    for name, query in mine.items():
        expected = [tuple(row) for row in theirs[name].collect()]
        answer = [tuple(row) for row in query.collect()]
        if name != "an order":
            expected, answer = sorted(expected, key=repr), sorted(answer, key=repr)
        assert answer == expected, name
        assert "on Spark" not in str(query.explain()), name

    near = mr_functions.udf(lambda x, y: x == y, "boolean")
    t, u = ws.from_arrow(NUMBERED), ws.from_arrow(small)
    with pytest.raises(mr.UserError, match="left join cannot call a function over both"):
        t.join(u, near(t["o"], u["p"]), "left")


def test_sql_calls_registered_functions_of_groups(ws: mr.Workspace) -> None:
    ws.udf.register("mean_of", PANDAS_UDF(_mean, "double"))
    ws.view("t", ws.from_arrow(pa.table({"k": [1, 1, 2], "v": [1.0, 3.0, 7.0]})))
    grouped = ws.sql("SELECT k, mean_of(v) + 1 AS m FROM t GROUP BY k ORDER BY k")
    assert [tuple(row) for row in grouped.collect()] == [(1, 3.0), (2, 8.0)]
    over = ws.sql("SELECT v, mean_of(v) OVER (PARTITION BY k) AS m FROM t ORDER BY v")
    assert [tuple(row) for row in over.collect()] == [(1.0, 2.0), (3.0, 2.0), (7.0, 7.0)]
    named = ws.sql("SELECT * FROM t").groupBy("k").agg(m="mean_of(v)").orderBy("k")
    assert [tuple(row) for row in named.collect()] == [(1, 2.0), (2, 7.0)]


def test_calls_of_functions_are_reused_until_their_code_changes(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    del spark
    dataset = ws.from_arrow(TABLE)

    def ran(udf: Any) -> int:  # noqa: ANN401 - PySpark's
        return called(dataset, udf, "i").run().ran

    assert ran(F.udf(lambda x: x, "int")) == 1
    assert ran(F.udf(lambda x: x, "int")) == 0
    assert ran(F.udf(lambda x: x, "long")) == 1
    assert ran(F.udf(lambda x: -x if x else x, "int")) == 1
    random = F.udf(lambda x: x, "int").asNondeterministic()
    assert (ran(random), ran(random)) == (1, 1)
    report = called(dataset, random, "i").run()
    assert "it is not deterministic, as its user says" in str(report)


def test_an_error_in_a_function_names_it_and_its_line(ws: mr.Workspace) -> None:
    def broken(value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - Spark reads hints
        return value // 0

    with pytest.raises(FunctionFailed, match="broken raised") as caught:
        rows(called(ws.from_arrow(TABLE), F.udf(broken, "int"), "i"))
    assert "ZeroDivisionError" in str(caught.value)
    assert "value // 0" in str(caught.value)


def test_sql_calls_registered_functions_everywhere(ws: mr.Workspace) -> None:
    ws.udf.register("plus", lambda x, y: None if x is None or y is None else x + y, "long")
    ws.udf.register("size_of", PANDAS_UDF(_lengths, "double"))
    ws.view("t", ws.from_arrow(TABLE))

    query = ws.sql(
        "SELECT plus(plus(i, 1), i % 10) + 1 AS a, CASE WHEN size_of(s) > 0 THEN s END AS s "
        "FROM t WHERE plus(i, 0) IS NOT NULL ORDER BY a"
    )
    assert [tuple(row) for row in query.collect()] == [(-4, None), (4, "a"), (2147483656, "täxt")]
    grouped = ws.sql("SELECT plus(i % 2, 0) AS k, sum(plus(l, 1)) AS n FROM t GROUP BY 1")
    assert {tuple(row) for row in grouped.collect()} == {
        (1, -2),
        (-1, 4611686018427387905),
        (None, None),
    }
    assert "on Spark" not in str(query.explain()) + str(grouped.explain())


def test_columns_of_functions_are_selected_filtered_and_aggregated(ws: mr.Workspace) -> None:
    plus_one = mr_functions.udf(lambda x: None if x is None else x + 1, "long")
    mean = mr_functions.pandas_udf(_mean, "double")  # type: ignore[attr-defined]
    rows_of = ws.from_arrow(pa.table({"k": [1, 1, 2], "v": [1.0, 3.0, 7.0]}))

    chosen = rows_of.select("k", plus_one("k").alias("n")).where(plus_one("n") > 3)
    assert [tuple(row) for row in chosen.collect()] == [(2, 3)]
    grouped = rows_of.groupBy("k").agg((mean("v") + 1).alias("m")).orderBy("k")
    assert [tuple(row) for row in grouped.collect()] == [(1, 3.0), (2, 8.0)]
    assert "on Spark" not in str(chosen.explain()) + str(grouped.explain())


@pytest.mark.slow
def test_a_call_without_an_alias_has_sparks_name(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"s": ["a", "b"]})
    ours = mr.open(tmp_path / "mill", spark, create=True).from_arrow(table)
    doubled = mr_functions.udf(lambda s: s * 2, "string")
    plus = mr_functions.pandas_udf(_addOne, "double")  # type: ignore[attr-defined]
    named = ours.select(doubled("s"), plus("s"))
    assert named.columns == ["<lambda>(s)", "_addOne(s)"]
    assert [row[0] for row in named.select("<lambda>(s)").collect()] == ["aa", "bb"]


def _addOne(s: pd.Series) -> pd.Series:  # noqa: N802 - Spark keeps capitals
    return s + 1
