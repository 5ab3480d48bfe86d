"""Moves filters down, past operators and later exchanges, to the scans where they leave out most.

A filter that could fail for some value stays where it was written: further down it would meet rows
that are gone by then. Nothing passes what is to be kept at rest: others read it too. Invariant: the
plan's result is the same, rows and columns.
"""

from __future__ import annotations

from millrace.plan.nodes import Filter, Node, with_new_children


def push_filters(plan: Node) -> Node:
    """The same plan, with filters as near to the scans as they can be."""
    if isinstance(plan, Filter) and not plan.condition.raises:
        moved = _moved(plan)
        if moved is not None:
            return push_filters(moved)
    return with_new_children(plan, [push_filters(child) for child in plan.children])


def _moved(plan: Filter) -> Node | None:
    """The operator below, over inputs that are filtered instead; None if it cannot be."""
    below = plan.child
    if isinstance(below, Filter):
        inner = _moved(Filter(below.child, plan.condition))
        return None if inner is None else Filter(inner, below.condition)
    passes = below.passes(plan.condition.columns)
    if all(names is None for names in passes):
        return None
    children = [
        child if names is None else Filter(child, plan.condition.renamed(names))
        for child, names in zip(below.children, passes, strict=True)
    ]
    return below.with_children(*children)
