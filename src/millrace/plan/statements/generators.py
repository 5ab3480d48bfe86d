"""LATERAL VIEW."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.generators.build_generate import Generator, generate, generator_of
from millrace.plan.relation import Relation
from millrace.sql.typed_sql import NotNative


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
