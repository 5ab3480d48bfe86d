"""Builds the window calls inside expressions: each becomes a column of a window below."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.nodes.node import Node
from millrace.sql.typed_sql import NotNative


def with_window_columns(
    context: BuildContext, node: Node, trees: Sequence[exp.Expression]
) -> tuple[Node, list[exp.Expression]]:
    """A plan with a column for each window call of resolved trees, and the trees over them."""
    del context
    for tree in trees:
        if tree.find(exp.Window):
            raise NotNative("windows in a select list are not built yet", fix="use window()")
    return node, list(trees)
