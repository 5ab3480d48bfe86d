"""Columns without AS have the names that Spark gives them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.parser import read

pytestmark = pytest.mark.spark
ROWS = "VALUES (1, 1, date'2020-01-01') AS t(x, y, d)"
LISTS = [
    "x IS NULL, x IS NOT NULL, NOT x = 1, x <> 1, x BETWEEN 1 AND 2, x IN (1, 2), -x, -(x + 1)",
    "CASE WHEN x = 1 THEN 2 ELSE 3 END, CASE x WHEN 1 THEN 2 END, IF(x > 1, 2, 3), x LIKE 'a'",
    "x || 'a', DATE'2020-01-01', UPPER('a'), Sum(x), COUNT(*), extract(YEAR FROM d), x = 1.50",
    "first(x) IGNORE NULLS, first(x), first(x, true), any_value(x) IGNORE NULLS, last_value(x)",
    "count(DISTINCT x, y), std(x), mean(x), approx_percentile(x, 0.5)",
    "percentile_approx(x, 0.5, 9), percentile_approx(x, array(0.5))",
    "approx_count_distinct(x, 0.1), max_by(x, y), every(x > 1)",
    "array_agg(DISTINCT x), regr_slope(x, y), percentile(x, 0.5), count_if(x > 1), max(x + 1)",
    "string_agg(x), string_agg(x, ','), histogram_numeric(x, 3), sum(x) FILTER (WHERE y > 1)",
    "percentile_cont(0.25) WITHIN GROUP (ORDER BY x DESC), mode(x), mode(x, true)",
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY x) FILTER (WHERE y > 0)",
    "listagg(x, '-') WITHIN GROUP (ORDER BY y), sum(CASE WHEN x = 1 THEN 2 ELSE 3 END)",
    "sum(x) OVER (PARTITION BY y, x + 1 ORDER BY x, y DESC), sum(x) OVER ()",
    "sum(x) OVER (ORDER BY y NULLS LAST ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING)",
    "sum(x) OVER (ORDER BY y range between 1 preceding and 2 following)",
    "sum(x) OVER (ORDER BY y DESC ROWS 3 PRECEDING)",
    "sum(x) OVER (ORDER BY y RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    "sum(x) OVER (ORDER BY d RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW)",
    "row_number() OVER (ORDER BY y), rank() OVER (ORDER BY y), dense_rank() OVER (ORDER BY y)",
    "percent_rank() OVER (ORDER BY y), cume_dist() OVER (ORDER BY y), ntile(3) OVER (ORDER BY y)",
    "lag(x) OVER (ORDER BY y), lag(x, 2, 0) OVER (ORDER BY y), lead(x, 3) OVER (ORDER BY y)",
    "lag(x) IGNORE NULLS OVER (ORDER BY y), lag(x, -1) OVER (ORDER BY y)",
    "nth_value(x, 2) OVER (ORDER BY y), nth_value(x, 2) IGNORE NULLS OVER (ORDER BY y)",
    "first_value(x) OVER (ORDER BY y), first_value(x) IGNORE NULLS OVER (ORDER BY y)",
    "count(*) FILTER (WHERE x > 1) OVER (PARTITION BY y), avg(x) OVER (PARTITION BY y) / 2",
]


@pytest.mark.parametrize("texts", LISTS)
def test_a_column_without_a_name_has_sparks(spark: SparkSession, texts: str) -> None:
    tree = read(f"SELECT {texts}")
    assert isinstance(tree, exp.Select)
    mine = [spark_label(item) for item in tree.expressions]
    theirs = [spark.sql(f"SELECT {text} FROM {ROWS}").columns[0] for text in _split(texts)]
    assert mine == theirs


def _split(texts: str) -> list[str]:
    """The items of a list, cut at the commas outside of brackets."""
    out, depth = [""], 0
    for letter in texts:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    return out
