"""Datasets as columns and as sides of lateral joins have the rows of SQL's subqueries."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pyarrow as pa
import pytest
from tests.unit.engine.memory_kit import rows

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it

ORDERS = pa.table({"k": [1, 1, 1, 2, None, 5], "v": [10, 20, 30, 5, 7, None]})
CUSTOMERS = pa.table({"k": [1, 2, 3, None], "name": ["a", "b", "c", "d"]})
Question = Callable[[mr.Dataset, mr.Dataset], mr.Dataset]
OF_ONE = "(SELECT {} FROM o WHERE o.k = c.k)"
CASES: dict[str, Question] = {
    "SELECT * FROM c WHERE EXISTS (SELECT * FROM o WHERE o.k = c.k)": lambda o, c: c.where(
        o.where(o.k == c.k.outer()).exists()
    ),
    "SELECT * FROM c WHERE NOT EXISTS (SELECT * FROM o WHERE o.k = c.k AND v > 6)": lambda o, c: (
        c.alias("c").where(
            ~o.alias("o").where((F.col("o.k") == F.col("c.k").outer()) & (F.col("v") > 6)).exists()
        )
    ),
    "SELECT * FROM c WHERE EXISTS (SELECT * FROM o WHERE o.k > c.k) OR name = 'd'": lambda o, c: (
        c.where(o.where(o.k > c.k).exists() | (c.name == "d"))
    ),
    "SELECT * FROM o WHERE v = (SELECT max(v) FROM o)": lambda o, _c: o.where(
        F.col("v") == o.agg(F.max("v")).scalar()
    ),
    f"SELECT name, {OF_ONE.format('count(*)')} FROM c": lambda o, c: c.select(
        "name", o.where(o.k == c.k).select(F.count("*")).scalar()
    ),
    f"SELECT *, {OF_ONE.format('sum(v)')} FROM c": lambda o, c: c.withColumn(
        "t", o.where(o.k == c.k).agg(F.sum("v")).scalar()
    ),
    f"SELECT c.*, x.v FROM c, LATERAL {OF_ONE.format('v')} x": lambda o, c: c.lateralJoin(
        o.where(o.k == c.k).select("v")
    ),
    (
        "SELECT c.*, x.v FROM c LEFT JOIN LATERAL "
        "(SELECT v FROM o WHERE o.k = c.k ORDER BY v DESC LIMIT 2) x ON true"
    ): lambda o, c: c.lateralJoin(
        o.where(o.k == c.k).select("v").orderBy(F.col("v").desc()).limit(2), how="left"
    ),
    (
        "SELECT c.*, x.* FROM c, LATERAL "
        "(SELECT v % 4 AS m, count(*) AS n FROM o WHERE o.k >= c.k GROUP BY v % 4) x"
    ): lambda o, c: c.lateralJoin(
        o.where(o.k >= c.k).groupBy((F.col("v") % 4).alias("m")).agg(F.count("*").alias("n"))
    ),
    "SELECT c.*, x.* FROM c, (SELECT max(v) FROM o) x": lambda o, c: c.lateralJoin(
        o.agg(F.max("v"))
    ),
    "SELECT c.*, o.* FROM c JOIN o ON c.k < o.k": lambda o, c: c.lateralJoin(o, c.k < o.k),
    (
        "SELECT c.*, x.* FROM c, LATERAL (SELECT * FROM o WHERE abs(o.k - c.k) IS NOT NULL "
        "ORDER BY abs(o.k - c.k), v LIMIT 1) x"
    ): lambda o, c: c.nearestByJoin(
        o, F.abs(o.k - c.k) + F.coalesce(o.v, F.lit(100)) / 1000, 1, "exact", "distance"
    ),
    "SELECT o.*, c.* FROM o JOIN c ON o.k = c.k AND o.v > (SELECT avg(v) FROM o)": lambda o, c: (
        o.join(c, (o.k == c.k) & (o.v > o.agg(F.avg("v")).scalar()))
    ),
    "SELECT o.*, c.* FROM o LEFT JOIN c ON o.k = c.k AND o.v > (SELECT max(v) / 2 FROM o)": (
        lambda o, c: o.join(c, (o.k == c.k) & (o.v > o.agg(F.max("v")).scalar() / 2), "left")
    ),
    "SELECT * FROM c ORDER BY EXISTS (SELECT * FROM o WHERE o.k = c.k), k DESC LIMIT 2": (
        lambda o, c: c.orderBy(o.where(o.k == c.k).exists(), F.col("k").desc()).limit(2)
    ),
    "SELECT * FROM c WHERE EXISTS (SELECT * FROM o WHERE upper(name) < 'B' AND v = 20)": (
        lambda o, c: c.where(
            o.where((F.upper(F.col("name").outer()) < "B") & (F.col("v") == 20)).exists()
        )
    ),
    "SELECT k, sum(v * (SELECT max(k) FROM c)) FROM o GROUP BY k": lambda o, c: o.groupBy("k").agg(
        F.sum(F.col("v") * c.agg(F.max("k")).scalar())
    ),
    "SELECT k, max(v) > (SELECT avg(v) FROM o) FROM o GROUP BY k": lambda o, _c: o.groupBy("k").agg(
        F.max("v") > o.agg(F.avg("v")).scalar()
    ),
    "SELECT v > (SELECT avg(v) FROM o), count(*) FROM o GROUP BY 1": lambda o, _c: o.groupBy(
        F.col("v") > o.agg(F.avg("v")).scalar()
    ).count(),
    "SELECT sum(v) / (SELECT count(*) FROM c) FROM o": lambda o, c: o.agg(
        F.sum("v") / c.select(F.count("*")).scalar()
    ),
    "SELECT count(*) FILTER (EXISTS (SELECT * FROM c WHERE c.k = o.k)) FROM o": lambda o, c: o.agg(
        F.count_if(c.where(c.k == o.k).exists())
    ),
    "SELECT k, v + 1, k FROM o": lambda o, _c: o.select("k", F.col("v") + 1).zip(o.select("k")),
    "SELECT k, sum(v), max(v) + 1, k FROM o GROUP BY k": lambda o, _c: (
        (groups := o.groupBy("k").agg(F.sum("v").alias("s"), F.max("v").alias("m")))
        .select("k", "s")
        .zip(groups.select(F.col("m") + 1, "k"))
    ),
    "SELECT k, sum(v), sum(v) AS s, k FROM o GROUP BY k": lambda o, _c: (
        (groups := o.groupBy("k").agg(F.sum("v").alias("s")))
        .select("k", F.col("s").alias("t"))
        .zip(groups.select("s", "k"))
    ),
}
AMONG = {
    "SELECT * FROM o WHERE k IN (SELECT k FROM c)": lambda o, c: o.where(
        F.col("k").isin(c.select("k"))
    ),
    "SELECT * FROM o WHERE k IS NOT NULL AND k NOT IN (SELECT k FROM c WHERE k > 1)": (
        lambda o, c: o.where(~o.k.isin(c.where("k > 1").select("k")))
    ),
    "SELECT * FROM o WHERE (k, v) IN (SELECT k, k * 10 FROM c)": lambda o, c: o.where(
        F.struct("k", "v").isin(c.select("k", c.k * 10))
    ),
    "SELECT v, coalesce(k + 1 IN (SELECT k FROM c), false) FROM o": lambda o, c: o.select(
        "v", (o.k + 1).isin(c.select("k"))
    ),
}
"""Of values among the rows of a dataset, which PySpark has since 4.1."""


def answer(dataset: mr.Dataset) -> list[str]:
    table = pa.Table.from_batches(
        [
            batch.rename_columns(list(map(str, range(batch.num_columns))))
            for batch in dataset.to_batches()
        ]
    )
    return sorted(str(tuple(row.values())) for row in table.to_pylist())


def of_the_text(text: str) -> list[str]:
    with duckdb.connect() as db:
        db.register("o", ORDERS)
        db.register("c", CUSTOMERS)
        return sorted(str(row) for row in db.sql(text).fetchall())


@pytest.mark.parametrize("text", CASES)
def test_a_dataset_in_another_has_the_rows_of_the_subquery(text: str) -> None:
    assert answer(CASES[text](rows(ORDERS), rows(CUSTOMERS))) == of_the_text(text)


@pytest.mark.parametrize("text", AMONG)
def test_values_among_the_rows_of_a_dataset_are_those_of_the_subquery(text: str) -> None:
    assert answer(AMONG[text](rows(ORDERS), rows(CUSTOMERS))) == of_the_text(text)


def test_a_dataset_that_names_columns_around_it_has_no_rows_alone() -> None:
    o, c = rows(ORDERS), rows(CUSTOMERS)
    theirs = o.where(o.k == c.k)
    with pytest.raises(mr.UserError, match=r"there is no column k(.|\n)*to fix: .*lateralJoin"):
        theirs.toArrow()
    with pytest.raises(mr.UserError, match="there is no column k"):
        theirs.withColumn("x", F.lit(1))
    with pytest.raises(mr.UserError, match="there is no column k"):
        c.nearestByJoin(theirs, F.lit(1), 1, "exact", "distance")
    assert "WHERE" in repr(theirs)


def test_a_dataset_that_names_columns_around_it_has_the_alias_it_gets() -> None:
    o, c = rows(ORDERS), rows(CUSTOMERS)
    theirs = o.where(o.k == c.k).select("v").alias("x")
    joined = c.lateralJoin(theirs).where(F.col("x.v") > 10).select("name", F.col("x.v"))
    assert sorted(map(str, answer(joined))) == ["('a', 20)", "('a', 30)"]


def test_a_slip_in_a_name_without_a_table_fails_at_once() -> None:
    with pytest.raises(mr.UserError, match="there is no column vv"):
        rows(ORDERS).where(F.col("vv") > 1)


def test_rows_that_are_not_aligned_are_not_zipped() -> None:
    o = rows(ORDERS)
    with pytest.raises(mr.UserError, match="no common order"):
        o.select("k").zip(o.where("v > 6").select("v"))


def test_metadata_stays_with_a_column() -> None:
    given = rows(ORDERS).withMetadata("v", {"unit": "EUR"})
    passed = given.where("v > 1").select("k", F.col("V").alias("w"), (F.col("v") + 1).alias("x"))
    assert [field.metadata for field in passed.schema] == [{}, {"unit": "EUR"}, {}]
    with pytest.raises(mr.UserError, match="takes a dict"):
        given.withMetadata("v", "EUR")  # type: ignore[arg-type]
    with pytest.raises(mr.UserError, match="no column vv"):
        given.withMetadata("vv", {})
