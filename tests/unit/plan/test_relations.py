"""Relations: names by Spark's rules, over plans whose columns have names of their own."""

import pyarrow as pa
import pytest
from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_relation_join import join_on, join_using
from millrace.plan.builders.build_select import select, where, with_columns
from millrace.plan.builders.build_sort import sort
from millrace.plan.nodes.frame_scan import FrameScan
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.relation import Relation, relation_of
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

CONTEXT = BuildContext()


def rows(alias: str, **columns: pa.DataType) -> Relation:
    schema = pa.schema(columns)
    return relation_of(FrameScan(object(), schema, None, tuple(schema.names))).with_alias(alias)


def orders() -> Relation:
    return rows("o", k=pa.int64(), amount=pa.int32(), day=pa.date32())


def customers() -> Relation:
    return rows("c", k=pa.int32(), name=pa.string())


def test_a_join_on_a_condition_keeps_both_columns_of_one_name() -> None:
    joined = join_on(CONTEXT, orders(), customers(), "inner", read("o.k = c.k AND o.amount > 1"))
    assert joined.labels == ["k", "amount", "day", "k", "name"]
    assert isinstance(joined.node, Join)
    assert joined.node.left_keys == ("k",)
    assert joined.node.condition is not None
    with pytest.raises(ExpressionRefused, match="ambiguous"):
        select(CONTEXT, joined, [read("k")])
    picked = select(CONTEXT, joined, [read("o.k"), read("c.k AS other"), read("NAME")])
    assert picked.labels == ["k", "other", "NAME"]
    assert picked.schema.field("other").type == pa.int32()


def test_a_join_using_a_column_has_it_once_and_still_knows_both() -> None:
    joined = join_using(CONTEXT, orders(), customers(), "full", ["k"])
    assert joined.labels == ["k", "amount", "day", "name"]
    assert select(CONTEXT, joined, [read("c.k"), read("o.k AS left_k")]).labels == ["k", "left_k"]
    assert joined.schema.field("k").type == pa.int64()


def test_a_column_can_be_sorted_by_after_it_was_dropped() -> None:
    some = select(CONTEXT, orders(), [read("amount * 2 AS amount")])
    assert some.labels == ["amount"]
    assert sort(CONTEXT, some, [exp.Ordered(this=read("day"), desc=True)]).labels == ["amount"]
    with pytest.raises(ExpressionRefused, match="no column nothing"):
        where(CONTEXT, some, read("nothing > 1"))


def test_expressions_mix_keys_and_aggregates() -> None:
    grouped = GroupedRows(CONTEXT, orders(), [read("year(o.day)"), read("k")])
    items = [
        grouped.rewrite_item(read(text))
        for text in ("year(day)", "k + 1 AS next", "sum(amount) / count(*)", "sum(amount) AS s")
    ]
    result = select(CONTEXT, grouped.relation(), items)
    assert result.labels == ["year(day)", "next", "(sum(amount) / count(1))", "s"]
    with pytest.raises(ExpressionRefused, match="amount is neither a key nor in an aggregate"):
        grouped.rewrite(read("amount + 1"))


def test_an_aggregate_in_a_select_list_makes_one_row() -> None:
    total = select(CONTEXT, orders(), [read("sum(amount) AS total"), read("count(*) + 1")])
    assert total.labels == ["total", "(count(1) + 1)"]


def test_new_columns_replace_old_ones_in_their_order() -> None:
    more = with_columns(CONTEXT, orders(), [("AMOUNT", read("amount + 1L")), ("x", read("k"))])
    assert more.labels == ["k", "AMOUNT", "day", "x"]
    assert more.schema.field("AMOUNT").type == pa.int64()


def test_what_only_spark_computes_goes_to_spark_as_one_operator() -> None:
    asked = []

    def on_spark(_inputs: object, sql: object, reason: str) -> Node:
        asked.append((sql, reason))
        return FrameScan(object(), pa.schema({"a": pa.string()}), None, ("a",))

    context = BuildContext(on_spark=on_spark)
    spark_rows = select(context, orders(), [read("uuid() AS a")])
    assert spark_rows.labels == ["a"]
    ((sql, reason),) = asked
    assert sql == "SELECT UUID() AS `a` FROM input_0"
    assert "uuid" in reason
    with pytest.raises(NotNative):
        select(CONTEXT, orders(), [read("uuid() AS a")])


def test_columns_are_named_through_the_dataset_they_came_from() -> None:
    first, second = orders().with_origin(1), orders().with_origin(2)
    joined = join_on(CONTEXT, first, second, "cross", None)
    column = exp.column("amount")
    column.meta["origin"] = 2
    (attribute,) = select(CONTEXT, joined, [column]).visible
    assert attribute.origins == frozenset({2})
