"""Leaves out columns that nobody needs, down to the scans.

Invariant: the plan's result is the same, rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millrace.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    FinalAggregate,
    Join,
    Node,
    PartialAggregate,
    Project,
    ReadStage,
    Scan,
)


def prune(plan: Node) -> Node:
    """The same plan, reading only what it needs."""
    return _prune(plan, set(plan.schema.names))


def _prune(node: Node, needed: set[str]) -> Node:
    match node:
        case Scan(columns=columns):
            kept = tuple(name for name in columns if name in needed)
            return replace(node, columns=kept or columns[:1])
        case Project(child=child, columns=columns):
            some = tuple((name, e) for name, e in columns if name in needed) or columns[:1]
            return Project(_prune(child, _read(e.columns for _, e in some)), some)
        case Filter(child=child, condition=condition):
            return Filter(_prune(child, needed | condition.columns), condition)
        case Aggregate(child=child, keys=keys, aggregates=aggregates):
            below = {*keys} | _read(aggregate.columns for aggregate in aggregates)
            return replace(node, child=_prune(child, below))
        case Join():
            return _prune_join(node, needed)
        case Exchange() | PartialAggregate() | FinalAggregate() | ReadStage():
            raise AssertionError("columns are pruned before exchanges are inserted")


def _prune_join(node: Join, needed: set[str]) -> Join:
    some = tuple(column for column in node.columns if column.name in needed) or node.columns[:1]
    left = {column.source for column in some if column.side != "right"} | {*node.left_keys}
    right = {column.source for column in some if column.side == "right"} | {*node.right_keys}
    return replace(
        node, left=_prune(node.left, left), right=_prune(node.right, right), columns=some
    )


def _read(sets: Iterable[frozenset[str]]) -> set[str]:
    return {name for names in sets for name in names}
