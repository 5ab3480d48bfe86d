"""Methods of datasets under Spark's names: the same calls on both sides give the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation, SparkSession
from pyspark.sql import Window as SparkWindow

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it

ORDERS = pa.table(
    {
        "k": pa.array([1, 2, 2, None, 3, 3], pa.int64()),
        "amount": pa.array([10, 20, 20, 5, None, -7], pa.int32()),
        "price": pa.array([1.5, float("nan"), 2.0, None, -0.0, 7.25]),
        "name": pa.array(["a", None, "b", "b", "c d", ""]),
        "ok": pa.array([True, None, False, True, True, False]),
    }
)
CUSTOMERS = pa.table(
    {
        "k": pa.array([1, 2, 4, None], pa.int64()),
        "name": pa.array(["one", "two", "four", "none"]),
        "nation": pa.array(["fr", "de", None, "it"]),
    }
)
Frame = Any
WORKSPACES: list[mr.Workspace] = []


def _window(functions: Any) -> Any:  # noqa: ANN401 - of either side
    return (mr.Window if functions is F else SparkWindow).partitionBy("k")


def _tvf(frame: Frame, functions: Any) -> Any:  # noqa: ANN401 - as above
    """The table functions of the session that a frame is of."""
    if functions is F:
        return WORKSPACES[-1].tvf
    return frame.sparkSession.tvf


Question = Callable[[Frame, Frame, Any], Frame]
QUICK = (
    *("attributes", "withColumn", "when", "groupBy agg", "groupBy all numbers", "unionByName"),
    *(
        "subtract",
        "full join",
        "join on a condition",
        "fillna",
        "dropna thresh",
        "describe",
        "pivot",
        "windows",
    ),
)
"""What a quick run asks; the others are asked with the slow tests."""

QUESTIONS: dict[str, Question] = {
    "select names": lambda o, _c, _f: o.select("k", "name"),
    "select columns": lambda o, _c, f: o.select(f.col("k"), (f.col("amount") + 1).alias("more")),
    "select in another case": lambda o, _c, f: o.select("AMOUNT", f.col("OK")),
    "keys in another case": lambda o, _c, _f: o.groupBy("OK").count(),
    "select a list": lambda o, _c, _f: o.select(["k", "amount"]),
    "select a star": lambda o, _c, f: o.select("*", (f.col("amount") * 2).alias("twice")),
    "attributes": lambda o, _c, _f: o.select(o.k, o["amount"], o.price * 2),
    "brackets": lambda o, _c, _f: o[["k", "ok"]],
    "a condition in brackets": lambda o, _c, _f: o[o.amount > 5],
    "selectExpr": lambda o, _c, _f: o.selectExpr("k", "amount + 1 AS more", "upper(name)"),
    "where": lambda o, _c, f: o.where((f.col("amount") > 5) & f.col("ok")),
    "filter by text": lambda o, _c, _f: o.filter("amount > 5 OR name IS NULL"),
    "isin, between, like": lambda o, _c, f: o.where(
        f.col("k").isin(1, 3) | f.col("amount").between(15, 25) | f.col("name").like("b%")
    ),
    "null tests": lambda o, _c, f: o.where(f.col("amount").isNull() | f.col("name").isNotNull()),
    "withColumn": lambda o, _c, f: o.withColumn("twice", f.col("amount") * 2).withColumn(
        "k", f.lit(7)
    ),
    "withColumns": lambda o, _c, f: o.withColumns({"a": f.col("k") + 1, "b": f.lit("x")}),
    "when": lambda o, _c, f: o.select(
        "k", f.when(f.col("amount") > 10, "large").when(f.col("amount") > 0, "small").alias("w")
    ),
    "otherwise": lambda o, _c, f: o.select(f.when(f.col("ok"), 1).otherwise(0).alias("n")),
    "cast": lambda o, _c, f: o.select(
        f.col("amount").cast("string"), f.col("k").cast("double").alias("d")
    ),
    "withColumnRenamed": lambda o, _c, _f: o.withColumnRenamed("amount", "sum").withColumnRenamed(
        "nothing", "x"
    ),
    "withColumnsRenamed": lambda o, _c, _f: o.withColumnsRenamed({"k": "a", "name": "b"}),
    "toDF": lambda o, _c, _f: o.select("k", "ok").toDF("a", "b"),
    "drop": lambda o, _c, f: o.drop("ok", "nothing").drop(f.col("price")),
    "drop through the frame": lambda o, c, _f: o.join(c, o.k == c.k).drop(c.k),
    "distinct": lambda o, _c, _f: o.select("k", "amount").distinct(),
    "dropDuplicates": lambda o, _c, _f: o.select("k", "amount").dropDuplicates(),
    "dropDuplicates of keys": lambda o, _c, _f: o.dropDuplicates(["k"]).select("k"),
    "groupBy agg": lambda o, _c, f: o.groupBy("k").agg(
        f.sum("amount").alias("total"), f.count("*").alias("n"), f.max(f.col("price"))
    ),
    "groupBy an expression": lambda o, _c, f: o.groupBy((f.col("k") % 2).alias("odd")).count(),
    "groupBy count": lambda o, _c, _f: o.groupBy("k").count(),
    "groupBy sum": lambda o, _c, _f: o.groupBy("ok").sum("amount", "k"),
    "groupBy all numbers": lambda o, _c, _f: o.groupBy("ok").max(),
    "groupBy avg": lambda o, _c, _f: o.groupBy("k").avg("amount"),
    "groupBy by mapping": lambda o, _c, _f: o.groupBy("k").agg({"amount": "min"}),
    "groupBy nothing": lambda o, _c, f: o.groupBy().agg(f.countDistinct("k")),
    "agg": lambda o, _c, f: o.agg(f.sum("amount"), f.min("name")),
    "having": lambda o, _c, f: o.groupBy("k").count().where(f.col("count") > 1),
    "a key twice": lambda o, _c, _f: o.groupBy("k", "k").count(),
    "union": lambda o, _c, _f: o.union(o),
    "union of two types": lambda o, _c, _f: o.select("k").union(o.select("amount")),
    "unionByName": lambda o, c, _f: o.select("k", "name").unionByName(c.select("name", "k")),
    "unionByName with more": lambda o, c, _f: o.select("k", "ok").unionByName(
        c, allowMissingColumns=True
    ),
    "intersect": lambda o, c, _f: o.select("k").intersect(c.select("k")),
    "intersectAll": lambda o, c, _f: o.select("k").intersectAll(c.select("k")),
    "subtract": lambda o, c, _f: o.select("k").subtract(c.select("k")),
    "exceptAll": lambda o, c, _f: o.select("k").exceptAll(c.select("k")),
    "join on a name": lambda o, c, _f: o.join(c, "k"),
    "join on names": lambda o, c, _f: o.join(c, ["k", "name"], "left"),
    "left join": lambda o, c, _f: o.join(c, on="k", how="left_outer"),
    "full join": lambda o, c, _f: o.join(c, on="k", how="outer"),
    "right join": lambda o, c, _f: o.join(c, "k", "right"),
    "semi join": lambda o, c, _f: o.join(c, "k", "left_semi"),
    "anti join": lambda o, c, _f: o.join(c, "k", "left_anti"),
    "join on a condition": lambda o, c, _f: o.join(c, o.k == c.k, "left").select(
        o.k, c.k.alias("other"), o["name"], c["nation"]
    ),
    "join on conditions": lambda o, c, _f: o.join(c, [o.k == c.k, o.amount > 10]).select(c.name),
    "join without equality": lambda o, c, _f: o.join(c, o.k < c.k).select(o.k, c.k),
    "join of aliases": lambda o, _c, f: (
        o.alias("a")
        .join(o.alias("b"), f.col("a.k") == f.col("b.k"))
        .select("a.k", f.col("b.amount"))
    ),
    "crossJoin": lambda o, c, _f: o.select("k").crossJoin(c.select("nation")),
    "fillna": lambda o, _c, _f: o.fillna(0),
    "fillna with text": lambda o, _c, _f: o.na.fill("?"),
    "fillna with truth": lambda o, _c, _f: o.na.fill(value=False),
    "fillna by column": lambda o, _c, _f: o.fillna({"amount": 1, "name": "n", "ok": True}),
    "fillna of a subset": lambda o, _c, _f: o.fillna(1.5, subset=["price", "k"]),
    "dropna": lambda o, _c, _f: o.dropna(),
    "dropna all": lambda o, _c, _f: o.na.drop("all", subset=["amount", "price"]),
    "dropna thresh": lambda o, _c, _f: o.dropna(thresh=4),
    "replace": lambda o, _c, _f: o.replace(["a", "b"], ["x", "y"], "name"),
    "replace by mapping": lambda o, _c, _f: o.na.replace({20: 21}),
    "describe": lambda o, _c, _f: o.select("k", "amount").describe(),
    "summary": lambda o, _c, _f: o.select("amount").summary("count", "max"),
    "crosstab": lambda o, _c, _f: o.crosstab("k", "ok"),
    "sampleBy": lambda o, _c, _f: o.sampleBy("k", {1: 1.0, 2: 0.0}, seed=1),
    "sampleBy of a column": lambda o, _c, f: o.sampleBy(f.col("k") + 1, {2: 1.0, 3: 0.0}, seed=1),
    "parameters by name": lambda o, _c, f: (
        o.withColumn(colName="twice", col=f.col("amount") * 2)
        .withColumnsRenamed(colsMap={"ok": "fine"})
        .repartition(numPartitions=2)
        .dropDuplicates(subset=["k", "amount"])
        .union(other=o.withColumn("twice", f.lit(1)))
    ),
    "transform": lambda o, _c, _f: o.transform(lambda frame, n: frame.limit(n), 0),
    "colRegex": lambda o, _c, _f: o.select(o.colRegex("`(k|ok)`")),
    "rollup": lambda o, _c, f: o.rollup("k", "ok").agg(f.sum("amount"), f.grouping_id()),
    "cube": lambda o, _c, f: o.cube("k", "name").agg(f.count("*"), f.grouping("k")),
    "pivot": lambda o, _c, _f: o.groupBy("k").pivot("ok").sum("amount"),
    "pivot of values": lambda o, _c, f: (
        o.groupBy("k").pivot("name", ["a", "b"]).agg(f.max("amount").alias("m"), f.count("k"))
    ),
    "pivot of nothing": lambda o, _c, _f: o.groupBy().pivot("amount", [10, 11]).count(),
    "unpivot": lambda o, _c, _f: o.unpivot(["name"], ["k", "amount"], "column", "value"),
    "melt of all": lambda o, _c, _f: o.select("k", "amount", "price").melt(
        "k", None, "variable", "v"
    ),
    "transpose": lambda o, _c, _f: o.where("k = 1").select("name", "k", "amount").transpose(),
    "zipWithIndex": lambda o, _c, _f: o.orderBy("amount", "k").zipWithIndex().select("index"),
    "windows": lambda o, _c, f: o.select(
        "k", f.row_number().over(_window(f).orderBy("amount", "price")).alias("n")
    ),
    "sums over windows": lambda o, _c, f: o.withColumn(
        "s", f.sum("amount").over(_window(f)) - f.col("amount")
    ),
    "exists": lambda o, c, f: o.alias("o").where(
        c.where(f.col("k") == f.col("o.k").outer()).exists()
    ),
    "exists under aliases": lambda o, c, f: o.alias("o").where(
        ~c.alias("c")
        .where((f.col("c.k") == f.col("o.k").outer()) & f.col("nation").isNull())
        .exists()
    ),
    "scalar": lambda o, _c, f: o.where(f.col("amount") == o.select(f.max("amount")).scalar()),
    "scalar of each row": lambda o, c, f: o.alias("o").select(
        "k",
        c.alias("c")
        .where(f.col("c.k") == f.col("o.k").outer())
        .select(f.count("*").alias("n"))
        .scalar()
        .alias("n"),
    ),
    "scalar in withColumn": lambda o, c, f: o.alias("o").withColumn(
        "n", c.where(f.col("k") <= f.col("o.k").outer()).select(f.max("name")).scalar()
    ),
    "a subquery without a name": lambda o, _c, f: o.select(o.select(f.max("k")).scalar()),
    "subquery under a subquery": lambda o, c, f: o.alias("o").where(
        c.where(f.col("k") == f.col("o.k").outer())
        .select((f.col("k") + 1).alias("j"))
        .where(f.col("j") > 2)
        .exists()
    ),
    "lateralJoin": lambda o, c, f: c.alias("c").lateralJoin(
        o.alias("o")
        .where(f.col("o.k") == f.col("c.k").outer())
        .select("amount", "price")
        .orderBy(f.col("amount").desc(), "price")
        .limit(1),
        how="left",
    ),
    "lateralJoin on a condition": lambda o, c, _f: c.lateralJoin(o, o.k > c.k).select(c.k, o.k),
    "lateralJoin of a function": lambda o, _c, f: (
        o.withColumn("items", f.split("name", " "))
        .lateralJoin(
            _tvf(o, f).explode(f.col("items").outer()).select(f.upper("col").alias("item"))
        )
        .select("k", "item")
    ),
    "nearestByJoin": lambda o, c, f: o.nearestByJoin(
        c, f.abs(o.amount - c.k * 7) + c.k / 100, 2, "exact", "distance"
    ).select(o.k, o.amount, c.nation),
    "nearestByJoin with all rows": lambda o, c, _f: o.nearestByJoin(
        c, o.amount * c.k + c.k, 1, "approx", "similarity", joinType="leftouter"
    ).select(o.k, o.amount, c.nation),
    "zip": lambda o, _c, f: o.select("k", "name").zip(o.select((f.col("amount") + 1).alias("m"))),
    "columns of one name": lambda o, _c, f: o.select("k", f.col("amount").alias("k")),
}
ORDERED: dict[str, Question] = {
    "orderBy": lambda o, _c, f: o.orderBy("k", f.desc("amount"), "price"),
    "sort ascending": lambda o, _c, _f: o.sort("k", "amount", ascending=[False, True]),
    "desc_nulls_last": lambda o, _c, f: o.orderBy(f.col("amount").desc_nulls_last(), "k"),
    "sort by an expression": lambda o, _c, f: o.sort(f.length("name"), "k", "amount"),
    "a dropped column": lambda o, _c, _f: o.select("name").orderBy("amount", "k"),
    "limit": lambda o, _c, _f: o.orderBy("amount", "k").limit(2),
    "offset": lambda o, _c, _f: o.orderBy("amount", "k").offset(4),
    "positions": lambda o, _c, _f: o.select("amount", "k").orderBy(1, -2),
}


def _observed(frame: Frame, functions: Any) -> Any:  # noqa: ANN401 - of either side
    seen = Observation("orders")
    metrics = (functions.count("*").alias("n"), functions.max("amount"), functions.sum("price"))
    frame.where("k > 1").observe(seen, *metrics).collect()
    return repr(seen.get)


VALUES: dict[str, Question] = {
    "count": lambda o, _c, _f: o.count(),
    "collect": lambda o, _c, _f: o.orderBy("k", "amount", "name").collect(),
    "first": lambda o, _c, _f: o.orderBy("amount", "k").first(),
    "head": lambda o, _c, _f: (o.orderBy("amount").head(), o.orderBy("amount", "k").head(2)),
    "take": lambda o, _c, _f: o.orderBy("amount", "k").take(3),
    "tail": lambda o, _c, _f: o.orderBy("amount", "k", "name").tail(2),
    "isEmpty": lambda o, _c, _f: (o.isEmpty(), o.where("k > 9").isEmpty()),
    "columns": lambda o, c, _f: o.join(c, o.k == c.k).columns,
    "dtypes": lambda o, _c, _f: o.dtypes,
    "schema": lambda o, _c, _f: [(s.name, s.dataType) for s in o.schema],
    "approxQuantile": lambda o, _c, _f: o.approxQuantile("amount", [0.0, 0.5], 0.0),
    "several quantiles": lambda o, _c, _f: o.stat.approxQuantile(["amount", "k"], [1.0], 0.0),
    "corr": lambda o, _c, _f: o.na.fill(0).corr("k", "amount"),
    "cov": lambda o, _c, _f: o.cov("k", "amount"),
    "toPandas": lambda o, _c, _f: o.orderBy("k", "amount", "name").toPandas().to_dict(),
    "toLocalIterator": lambda o, _c, _f: list(o.orderBy("amount", "k", "name").toLocalIterator()),
    "withMetadata": lambda o, _c, f: [
        field.metadata
        for field in o.withMetadata("k", {"unit": "EUR"}).select("k", f.col("k").alias("j")).schema
    ],
    "metadata of an alias": lambda o, _c, f: (
        o.select(f.col("k").alias("j", metadata={"a": [1]})).schema["j"].metadata
    ),
    "observe": lambda o, _c, f: _observed(o, f),
    "isStreaming": lambda o, _c, _f: o.isStreaming,
}


@pytest.fixture(scope="module")
def sides(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Frame, Frame, Any]]:
    from pyspark.sql import functions

    folder = tmp_path_factory.mktemp("methods")
    for name, table in (("orders", ORDERS), ("customers", CUSTOMERS)):
        pq.write_table(table, folder / f"{name}.parquet")
    ws = mr.open(folder / "mill", spark, create=True)
    WORKSPACES.append(ws)
    paths = [str(folder / f"{name}.parquet") for name in ("orders", "customers")]
    ours, our_customers = (ws.read_parquet(path) for path in paths)
    theirs, their_customers = (spark.read.parquet(path) for path in paths)
    return {
        "ours": (ours, our_customers, F),
        "theirs": (theirs, their_customers, functions),
    }


def rows_of(frame: Frame) -> tuple[list[str], list[str]]:
    """The names of columns, and the rows as text."""
    return list(frame.columns), [repr(tuple(row)) for row in frame.collect()]


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in QUESTIONS],
)
def test_a_method_gives_sparks_rows(sides: dict[str, tuple[Frame, Frame, Any]], name: str) -> None:
    question = QUESTIONS[name]
    names, rows = rows_of(question(*sides["ours"]))
    their_names, their_rows = rows_of(question(*sides["theirs"]))
    assert names == their_names
    assert sorted(rows) == sorted(their_rows)


@pytest.mark.classic_only
def test_columns_of_a_classic_session_are_read(
    sides: dict[str, tuple[Frame, Frame, Any]],
) -> None:
    orders, customers, _ = sides["ours"]
    _, _, classic = sides["theirs"]
    for name in ("when", "isin, between, like", "groupBy agg", "cast", "having"):
        names, rows = rows_of(QUESTIONS[name](orders, customers, classic))
        their_names, their_rows = rows_of(QUESTIONS[name](*sides["theirs"]))
        assert (names, sorted(rows)) == (their_names, sorted(their_rows)), name
    window = SparkWindow.partitionBy("k").orderBy("amount").rowsBetween(-1, 0)
    columns = [
        classic.sum("amount").over(window).alias("s"),
        classic.lit(date(2020, 1, 2)).alias("day"),
        classic.expr("k + 1").alias("next"),
        classic.lit(Decimal("1.20")).alias("price"),
        classic.lit(datetime(2020, 1, 2, 3, 4, 5)).alias("at"),  # noqa: DTZ001 - as Spark takes it
        classic.lit(2**40).alias("long"),
    ]
    ours, theirs = orders.select(*columns), sides["theirs"][0].select(*columns)
    assert ours.dtypes == theirs.dtypes
    assert sorted(rows_of(ours)[1]) == sorted(rows_of(theirs)[1])
    with pytest.raises(mr.UserError, match="millrace import functions"):
        orders.select(classic.col("k").withField("a", classic.lit(1)))


@pytest.mark.parametrize(
    "name",
    [n if n == "orderBy" else pytest.param(n, marks=pytest.mark.slow) for n in ORDERED],
)
def test_a_method_gives_sparks_rows_in_its_order(
    sides: dict[str, tuple[Frame, Frame, Any]], name: str
) -> None:
    question = ORDERED[name]
    assert rows_of(question(*sides["ours"])) == rows_of(question(*sides["theirs"]))


@pytest.mark.parametrize(
    "name",
    [n if n == "collect" else pytest.param(n, marks=pytest.mark.slow) for n in VALUES],
)
def test_a_method_gives_sparks_value(sides: dict[str, tuple[Frame, Frame, Any]], name: str) -> None:
    question = VALUES[name]
    assert repr(question(*sides["ours"])) == repr(question(*sides["theirs"]))


def test_rows_are_written_as_spark_writes_them(
    spark: SparkSession, sides: dict[str, tuple[Frame, Frame, Any]], tmp_path: Path
) -> None:
    orders = sides["ours"][0]
    orders.write.mode("overwrite").parquet(str(tmp_path / "plain"))
    orders.write.partitionBy("k").parquet(str(tmp_path / "by_key"))
    orders.write.format("json").mode("append").save(str(tmp_path / "json"))
    orders.drop("ok").write.csv(str(tmp_path / "csv"), header=True)
    assert spark.read.parquet(str(tmp_path / "plain")).count() == 6
    assert (tmp_path / "by_key" / "k=1").is_dir()
    assert spark.read.json(str(tmp_path / "json")).count() == 6
    assert spark.read.option("header", "true").csv(str(tmp_path / "csv")).columns == [
        *("k", "amount", "price", "name")
    ]
    with pytest.raises(mr.UserError, match="two columns of one name"):
        orders.select("k", "k").write.parquet(str(tmp_path / "twice"))


def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        doubled = pc.multiply(batch["k"], 2)
        yield pa.RecordBatch.from_arrays([doubled], ["twice"])


def test_functions_over_batches_and_groups_run_on_spark(
    sides: dict[str, tuple[Frame, Frame, Any]],
) -> None:
    orders, customers, _ = sides["ours"]
    doubled = orders.mapInArrow(double, "twice long").where("twice > 2")
    assert sorted(doubled.toArrow()["twice"].to_pylist()) == [4, 4, 6, 6]
    firsts = orders.groupBy("k").applyInArrow(lambda group: group.slice(0, 1), orders.schema)
    assert firsts.count() == 4
    both = orders.groupBy("k").cogroup(customers.groupBy("k"))
    counts = both.applyInArrow(
        lambda one, two: pa.table({"n": [one.num_rows], "m": [two.num_rows]}), "n long, m long"
    )
    assert sorted(tuple(row) for row in counts.collect()) == [
        (0, 1),
        (1, 1),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_parts_by_chance_have_all_rows_once(sides: dict[str, tuple[Frame, Frame, Any]]) -> None:
    orders = sides["ours"][0]
    parts = orders.randomSplit([0.5, 0.3, 0.2], seed=3)
    rows = [repr(tuple(row)) for part in parts for row in part.collect()]
    assert sorted(rows) == sorted(rows_of(orders)[1])
    assert orders.sample(1.0, seed=1).count() == 6
    assert orders.sample(withReplacement=False, fraction=0.0, seed=1).count() == 0
