"""Drops columns that no operator above needs, down to the scans.

Invariant: the plan's result is the same, rows and columns.
"""

from __future__ import annotations

from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, select_only
from millrace.sql.expressions import Expression, quoted
from millrace.sql.types import SqlType, from_arrow


def prune(plan: Node) -> Node:
    """The same plan, reading only what it needs."""
    names = plan.schema.names
    # A window that replaces a column writes it last if the replaced one is not read.
    return select_only(_prune(plan, set(names)), names)


def _prune(node: Node, needed: set[str]) -> Node:
    kept, read = node.prune_columns(needed)
    children = [_prune(child, names) for child, names in zip(kept.children, read, strict=True)]
    if kept.requires_shuffle() and not isinstance(kept, Aggregate):
        children = [_narrowed(child, names) for child, names in zip(children, read, strict=True)]
    return kept.with_children(*children)


def _narrowed(node: Node, needed: set[str]) -> Node:
    """A filter without the columns that only its condition needs."""
    schema = node.schema
    names = [name for name in schema.names if name in needed]
    if not isinstance(node, Filter) or not names or len(names) == len(schema.names):
        return node
    columns = [(name, _column(name, from_arrow(schema.field(name).type))) for name in names]
    return Project(node, tuple(columns))


def _column(name: str, kind: SqlType) -> Expression:
    return Expression(sql=quoted(name), type=kind, columns=frozenset({name}), text=name)
