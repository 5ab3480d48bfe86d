"""Builds the sides of a union, under the same names."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import UserError
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.relation import picked_columns
from millrace.sql.types import SqlType, from_arrow


def with_names_of(first: Node, other: Node) -> Node:
    """The other side of a union under the first one's names."""
    ours = [(field.name, from_arrow(field.type)) for field in first.schema]
    theirs = [(field.name, from_arrow(field.type)) for field in other.schema]
    if [kind for _, kind in ours] != [kind for _, kind in theirs]:
        raise UserError(
            f"union() of different columns\n  found: {_listed(ours)}, and {_listed(theirs)}\n"
            "  to fix: bring both to the same types in the same order with select"
        )
    names = [name for name, _ in ours]
    passed = pass_columns(other.schema, other.schema.names)
    if any(not column.is_column for _, column in passed):
        return Project(other, tuple((n, e) for n, (_, e) in zip(names, passed, strict=True)))
    return picked_columns(other, list(zip(names, other.schema.names, strict=True)))


def _listed(columns: Sequence[tuple[str, SqlType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
