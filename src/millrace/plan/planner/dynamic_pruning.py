"""Leaves out files of partition folders that no row of a small joined side asks for.

The small side is broadcast, so it is finished before the large one is read. Row groups are left out
by the engine itself, which knows the small side's keys when it scans; here whole files are, by the
values in the names of their folders. Invariant: a join has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.types as pt

from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.read_stage import ReadStage
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import with_replaced
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import as_type, quoted

KeyValues = Callable[[int, str], Collection[Any] | None]
"""All values of a column of a finished stage; None if they are too many."""


@dataclass(frozen=True, slots=True)
class _PartitionKey:
    """A join key that is a column of partition folders, and the broadcast column it must equal."""

    scan: Scan
    column: str
    stage: int
    key: str


def leave_out_unmatched(root: Node, values: KeyValues) -> Node:
    """The tree of a stage, reading only files whose folders have a key of the small side."""
    kept: dict[int, Scan] = {}
    for partition_key in _partition_keys(root):
        wanted = values(partition_key.stage, partition_key.key)
        if wanted is not None:
            scan = kept.get(id(partition_key.scan), partition_key.scan)
            kept[id(partition_key.scan)] = _matching(scan, partition_key.column, frozenset(wanted))
    return with_replaced(root, kept) if kept else root


def _partition_keys(node: Node) -> list[_PartitionKey]:
    keys = [key for child in node.children for key in _partition_keys(child)]
    if not isinstance(node, Join):
        return keys
    sides = []
    if node.how in ("inner", "semi"):
        sides.append((node.left, node.left_keys, node.right, node.right_keys))
    if node.how == "inner":
        sides.append((node.right, node.right_keys, node.left, node.left_keys))
    for large, large_keys, small, small_keys in sides:
        if not isinstance(small, ReadStage) or not small.broadcast:
            continue
        for ours, theirs in zip(large_keys, small_keys, strict=True):
            origin = _origin(large, ours)
            if origin is not None:
                keys.append(_PartitionKey(*origin, small.stage, theirs))
    return keys


def _origin(node: Node, column: str) -> tuple[Scan, str] | None:
    """The scan and the partition column that a column comes from unchanged."""
    match node:
        case Scan(source=source) if column in source.partitions:
            exact = not pt.is_floating(source.schema.field(column).type)
            return (node, column) if exact and column not in source.timestamps else None
        case Filter(child=child):
            return _origin(child, column)
        case Project(child=child, columns=columns):
            made_of = dict(columns)[column]
            return _origin(child, next(iter(made_of.columns))) if _same_value(made_of) else None
        case Join(how="inner" | "left" | "semi", columns=columns):
            source_column = next(c for c in columns if c.name == column)
            if source_column.side == "right":
                return _origin(node.right, source_column.source) if node.how == "inner" else None
            return _origin(node.left, source_column.source)
        case _:
            return None


def _same_value(expression: Expression) -> bool:
    """Whether an expression is a column, perhaps as a wider whole number."""
    if expression.is_column or len(expression.columns) != 1:
        return expression.is_column
    cast = as_type(quoted(next(iter(expression.columns))), expression.type)
    return expression.type.is_integer and not expression.raises and expression.sql == cast


def _matching(scan: Scan, column: str, wanted: frozenset[Any]) -> Scan:
    """A scan of the files whose folders have one of these values; of one file at least."""
    position, shapes = scan.source.partitions.index(column), scan.source.shapes
    kept = tuple(shape for shape in shapes if shape.partition[position] in wanted)
    return replace(scan, source=replace(scan.source, shapes=kept or shapes[:1]))
