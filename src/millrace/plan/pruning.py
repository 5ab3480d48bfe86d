"""Leaves out columns that nobody needs, down to the scans.

Invariant: the plan's result is the same, rows and columns.
"""

from __future__ import annotations

from millrace.plan.nodes import Node


def prune(plan: Node) -> Node:
    """The same plan, reading only what it needs."""
    return _prune(plan, set(plan.schema.names))


def _prune(node: Node, wanted: set[str]) -> Node:
    kept, read = node.reads(wanted)
    children = [_prune(child, names) for child, names in zip(kept.children, read, strict=True)]
    return kept.with_children(*children)
