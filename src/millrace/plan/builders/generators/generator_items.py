"""Builds generators in select lists."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.generators.build_generate import (
    generate,
    generate_on_spark,
    generator_of,
)
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.relation import Attribute, Relation
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def attribute_tree(attribute: Attribute) -> exp.Expression:
    """An attribute as an item of a select list that passes it on as it is."""
    column = plan_column(attribute.column)
    column.meta["attribute"] = attribute
    return column


def with_generators(
    context: BuildContext, relation: Relation, items: Sequence[exp.Expression]
) -> tuple[Relation, list[exp.Expression]]:
    """The rows that the generators of a select list make, and the list over them."""
    out: list[exp.Expression] = []
    before = 0
    for item in items:
        body = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
        call = generator_of(body)
        if call is None:
            out.append(item)
            continue
        before += 1
        if before > 1:
            raise ExpressionRefused(
                "a select list has several generators",
                found=", ".join(i.sql("spark") for i in items),
                fix="use LATERAL VIEW",
            )
        labels = [item.alias] if isinstance(item, exp.Alias) else []
        if isinstance(item, exp.Aliases):
            labels = [name.name for name in item.expressions]
        try:
            rows, new = generate(context, relation, call, labels)
        except NotNative as refused:
            if context.on_spark is None:
                raise
            rows, new = generate_on_spark(context, relation, call, labels, refused.what)
        relation = Relation(rows.node, rows.attributes)
        out += [attribute_tree(attribute) for attribute in new]
    return relation, out
