"""Leaves out files of which it is known, before they are read, that a filter drops all their rows.

Folders say it by their names, and tables by their metadata. Of Parquet in stores, tasks leave out
row groups by the bounds in their footers. Invariant: the plan's result is the same: the filters
stay, and one file is always read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.scan import Scan
from millrace.scan.source import FileSource
from millrace.sql.expressions import Expression

MatchingFiles = Callable[[FileSource, Expression], FileSource]
"""The source without files for which it is known that a condition is true for no row."""


def prune_partitions(plan: Node, matching: MatchingFiles) -> Node:
    """The same plan, reading fewer files."""
    conditions: list[Expression] = []
    node = plan
    while isinstance(node, Filter):
        conditions.append(node.condition)
        node = node.child
    if isinstance(node, Scan) and conditions and _says_more(node.source):
        return _over(plan, _pruned(node, conditions, matching))
    children = [prune_partitions(child, matching) for child in plan.children]
    return with_new_children(plan, children)


def _says_more(source: FileSource) -> bool:
    return bool(source.partitions) or _has_bounds(source)


def _has_bounds(source: FileSource) -> bool:
    """Whether a table's metadata, or the footers that tasks read, have bounds of values."""
    return source.bounds is not None or source.is_read_by_groups


def _pruned(scan: Scan, conditions: list[Expression], matching: MatchingFiles) -> Scan:
    source = scan.source
    known = frozenset(source.partitions)
    for condition in conditions:
        is_known = condition.columns <= known or _has_bounds(source)
        if condition.columns and is_known and not condition.raises:
            source = matching(source, condition)
    if not source.shapes:  # A stage without tasks has no place in a plan.
        source = replace(source, shapes=scan.source.shapes[:1])
    return replace(scan, source=source)


def _over(node: Node, scan: Scan) -> Node:
    return replace(node, child=_over(node.child, scan)) if isinstance(node, Filter) else scan
