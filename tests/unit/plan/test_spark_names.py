"""Names of columns that Spark computes are Spark's; `window_time` takes columns with a mark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pytest
from sqlglot import exp
from tests.unit.sql.example_kit import GivenRows

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_on_spark import on_spark
from millrace.plan.builders.build_select import select
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.reshape.build_pivot import aggregated
from millrace.plan.nodes.on_spark import SparkQuery
from millrace.plan.relation import Attribute, Relation
from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import ExpressionRefused

ROWS = GivenRows(pa.table({"a": [1], "b": ["x"]}))
TWICE = Relation(ROWS, (Attribute("v", "a", ("l",)), Attribute("V", "b", ("r",))))


class Analyzer:
    """Answers with the aliases of a text; an expression without one is told its text."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def schema_of(self, query: SparkQuery, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        assert isinstance(query, str)
        assert all(name in query for name in inputs)
        names = [
            item.alias_or_name
            if isinstance(item, exp.Alias | exp.Column)
            else f"Spark's {item.sql()}"
            for item in read(query).expressions
        ]
        if any(name.startswith("Spark's") for name in names):
            self.asked.append(query)
        return pa.schema([(name, pa.string()) for name in names])

    def functions(self) -> frozenset[str]:
        return frozenset()


def test_spark_is_asked_for_the_names_of_its_columns_alone() -> None:
    analyzer = Analyzer()
    context = BuildContext(on_spark=partial(on_spark, analyzer), analyzer=analyzer)
    items = [read(text) for text in ("collate(r.v, 'UTF8_LCASE')", "l.V + 1", "soundex(r.V) AS s")]
    result = select(context, TWICE, items)
    assert analyzer.asked == ["SELECT COLLATE(input_0.`v`, 'UTF8_LCASE') FROM input_0"]
    assert result.labels == ["Spark's COLLATE(input_0.\"v\", 'UTF8_LCASE')", "(V + 1)", "s"]


def test_names_over_groups_are_asked_with_their_keys() -> None:
    analyzer = Analyzer()
    context = BuildContext(on_spark=partial(on_spark, analyzer), analyzer=analyzer)
    result = aggregated(context, TWICE, [read("l.v")], [read("hll_sketch_agg(r.v)")])
    assert analyzer.asked == [
        "SELECT HLL_SKETCH_AGG(input_0.`v`) FROM input_0 CROSS JOIN input_1 GROUP BY input_1.`v`"
    ]
    assert result.labels[0] == "v"
    assert result.labels[1].startswith("Spark's HLL_SKETCH_AGG")


def test_window_time_is_the_last_moment_of_a_marked_column() -> None:
    marked = Attribute("w", "column", metadata='{"spark.timeWindow": true}')
    tree = resolve(read("date(window_time(w))"), [marked])
    assert canonical(tree) == "DATE((`column`.`end` - INTERVAL '1' MICROSECOND))"
    assert spark_label(tree) == "date(window_time(w))"
    with pytest.raises(ExpressionRefused, match="not a window column"):
        resolve(read("window_time(w)"), [Attribute("w", "column")])
