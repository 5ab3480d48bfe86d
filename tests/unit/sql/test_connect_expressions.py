"""Columns of PySpark's Connect API become the trees that Spark SQL would give."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyspark.sql.connect.functions as F  # noqa: N812 - as all of PySpark's users do
import pytest
from pyspark.sql import types as T  # noqa: N812 - as above
from pyspark.sql.connect.proto import Expression
from pyspark.sql.connect.window import Window

from millrace.sql.connect_expressions import (
    ORIGIN,
    column_tree,
    expression_tree,
    name_parts,
    name_tree,
)
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

BY_DAY = "PARTITION BY `k` ORDER BY `day` DESC"
by_day = Window.partitionBy("k").orderBy(F.desc("day"))
SAME = [
    (F.col("a") + 1, "`a` + 1"),
    ((F.col("a") + 1) * 2, "(`a` + 1) * 2"),
    (~(F.col("a").isNull() | (F.col("b") == "x")), "NOT (isnull(`a`) OR (`b` = 'x'))"),
    (-F.col("a"), "negative(`a`)"),
    (F.col("t.a.b"), "`t`.`a`.`b`"),
    (F.col("`a.b`"), "`a.b`"),
    (F.lit(5_000_000_000), "5000000000L"),
    (F.lit(-1.5), "-1.5D"),
    (F.lit(col=True), "true"),
    (F.lit(None), "NULL"),
    (F.lit(b"\x01\xff"), "X'01ff'"),
    (F.lit(dt.date(2020, 2, 29)), "DATE '2020-02-29'"),
    (F.lit(Decimal("1.50")), "CAST('1.50' AS DECIMAL(10, 2))"),
    (F.lit([1, 2]), "array(1, 2)"),
    (F.col("a").cast("decimal(10,2)"), "CAST(`a` AS DECIMAL(10, 2))"),
    (F.col("a").cast(T.ArrayType(T.StringType())), "CAST(`a` AS ARRAY<STRING>)"),
    (F.col("a").try_cast("int"), "TRY_CAST(`a` AS INT)"),
    (F.when(F.col("a") > 1, "x").when(F.col("a") > 0, "y").otherwise("z"),
     "CASE WHEN `a` > 1 THEN 'x' WHEN `a` > 0 THEN 'y' ELSE 'z' END"),
    (F.col("a").isin(1, 2), "`a` IN (1, 2)"),
    (F.col("a").like("x%"), "`a` LIKE 'x%'"),
    (F.col("a").between(1, 2), "(`a` >= 1) AND (`a` <= 2)"),
    (F.count_distinct("a", "b"), "count(DISTINCT `a`, `b`)"),
    (F.count("*"), "count(*)"),
    (F.sum("a").alias("total"), "sum(`a`) AS `total`"),
    (F.expr("a + b * 2 AS c"), "a + b * 2 AS c"),
    (F.col("m")["k"], "`m`['k']"),
    (F.transform("arr", lambda x: x + 1), "transform(`arr`, `x_0` -> `x_0` + 1)"),
    (F.row_number().over(by_day), "row_number() OVER (PARTITION BY `k` ORDER BY `day` DESC)"),
    (F.sum("a").over(by_day.rowsBetween(-2, 0)),
     f"sum(`a`) OVER ({BY_DAY} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"),
    (F.sum("a").over(by_day.rangeBetween(Window.unboundedPreceding, 5)),
     f"sum(`a`) OVER ({BY_DAY} RANGE BETWEEN UNBOUNDED PRECEDING AND 5L FOLLOWING)"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "text"), SAME, ids=[text for _, text in SAME])
def test_a_column_is_read_as_its_text_would_be(column: object, text: str) -> None:
    assert canonical(column_tree(column)) == canonical(read(text))


def test_names_are_cut_at_dots_outside_of_backticks() -> None:
    assert name_parts("a.`b.c`.d") == ["a", "b.c", "d"]
    assert name_parts("`a``b`") == ["a`b"]
    for wrong in ("", "a.", "`a", ".a"):
        with pytest.raises(ExpressionRefused, match="not a name"):
            name_parts(wrong)


def test_a_long_name_ends_in_fields() -> None:
    assert canonical(name_tree("a.b.c.d.e.f")) == "`a`.`b`.`c`.`d`.`e`.`f`"


def test_a_column_of_a_frame_carries_its_origin() -> None:
    assert name_tree("a", 7).meta[ORIGIN] == 7


def test_a_kind_that_sql_does_not_have_is_left_to_spark() -> None:
    message = Expression(unresolved_regex=Expression.UnresolvedRegex(col_name="a"))
    with pytest.raises(NotNative, match="unresolved_regex"):
        expression_tree(message)


def test_what_is_no_column_is_refused() -> None:
    with pytest.raises(ExpressionRefused, match="not a column"):
        column_tree(5)
