"""LATERAL VIEW, and generators in select lists."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import attribute_tree
from millrace.plan.builders.generators.build_generate import Generator, generate, generator_of
from millrace.plan.relation import Relation
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def lateral_view(context: BuildContext, relation: Relation, tree: exp.Lateral) -> Relation:
    """Each row with each row that a function makes of it."""
    call = generator_of(tree.this)
    if call is None:
        raise NotNative("this lateral view is not built here", found=tree.sql("spark"), fix="")
    alias = tree.args.get("alias")
    labels = [name.name for name in (alias.args.get("columns") or ())] if alias else []
    table = (alias.name,) if alias is not None and alias.name else ()
    outer = call.outer or bool(tree.args.get("outer"))
    call = Generator(call.name, call.arguments, outer)
    rows, _ = generate(context, relation, call, labels, table)
    return rows


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
        rows, new = generate(context, relation, call, labels)
        relation = Relation(rows.node, rows.attributes)
        out += [attribute_tree(attribute) for attribute in new]
    return relation, out
