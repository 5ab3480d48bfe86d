"""Puts exchanges into a plan, just where rows have to change tasks.

Invariant: below an operator that needs equal keys together, they are; an exchange is left out where
rows already lie right, and everywhere if the inputs fit one task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.plan.nodes import (
    Aggregate,
    ByHash,
    Exchange,
    Filter,
    FinalAggregate,
    Join,
    Node,
    PartialAggregate,
    Placement,
    Project,
    ReadStage,
    Scan,
    ToOne,
    children,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Limits that decide how a plan is cut."""

    one_task_bytes_max: int
    broadcast_bytes_max: int
    partition_bytes_target: int
    partitions_max: int


def insert_exchanges(plan: Node, sizes: Sizes) -> Node:
    """The plan with exchanges, or as it is if its inputs fit one task."""
    if scanned_bytes(plan) <= sizes.one_task_bytes_max:
        return plan
    return _place(plan, sizes)


def scanned_bytes(node: Node) -> int:
    """How many bytes the scans below read, as far as files tell."""
    if isinstance(node, Scan):
        whole = len(node.source.schema.names)
        return node.source.bytes * len(node.columns) // max(1, whole)
    return sum(scanned_bytes(child) for child in children(node))


def lies_by(node: Node) -> Placement | None:
    """How the rows of a node lie over tasks; None if in no order that can be used."""
    match node:
        case Exchange(placement=ByHash() as placement):
            return placement
        case Exchange(placement=ToOne(broadcast=False) as placement):
            return placement
        case Filter(child=child):
            return lies_by(child)
        case Project(child=child, columns=columns):
            return _renamed(lies_by(child), {e.sql: name for name, e in columns})
        case FinalAggregate(child=child) | PartialAggregate(child=child) | Aggregate(child=child):
            return lies_by(child)
        case Join(left=left, how="inner" | "left" | "semi" | "anti"):
            return _kept(lies_by(left), node)
        case _:
            return None


def _place(node: Node, sizes: Sizes) -> Node:
    match node:
        case Scan() | ReadStage():
            return node
        case Project() | Filter():
            return replace(node, child=_place(node.child, sizes))
        case Aggregate():
            return _place_aggregate(node, sizes)
        case Join():
            return _place_join(node, sizes)
        case Exchange() | PartialAggregate() | FinalAggregate():
            raise AssertionError("exchanges are inserted once")


def _place_aggregate(node: Aggregate, sizes: Sizes) -> Node:
    child = _place(node.child, sizes)
    placement = lies_by(child)
    if placement is not None and _serves(placement, node.keys):
        return replace(node, child=child)
    wanted: Placement
    if node.keys:
        wanted = ByHash(node.keys, _count(scanned_bytes(node), sizes))
        why = "rows of a group must meet"
    else:
        wanted = ToOne(broadcast=False)
        why = "one row is made of all rows"
    if all(call.mergeable for aggregate in node.aggregates for call in aggregate.calls):
        partial = PartialAggregate(child, node.keys, node.aggregates)
        return FinalAggregate(Exchange(partial, wanted, why), replace(node, child=child))
    return replace(node, child=Exchange(child, wanted, why))


def _place_join(node: Join, sizes: Sizes) -> Node:
    left, right = _place(node.left, sizes), _place(node.right, sizes)
    small = scanned_bytes(node.right) <= sizes.broadcast_bytes_max
    if small and node.how in ("inner", "left", "semi", "anti"):
        whole = Exchange(right, ToOne(broadcast=True), "the right side is small")
        return replace(node, left=left, right=whole)
    size = max(scanned_bytes(node.left), scanned_bytes(node.right))
    count = _count(size, sizes)
    for side, keys in ((left, node.left_keys), (right, node.right_keys)):
        placement = lies_by(side)
        if isinstance(placement, ByHash) and placement.keys == keys:
            count = placement.partitions
    return replace(
        node,
        left=_by_hash(left, ByHash(node.left_keys, count)),
        right=_by_hash(right, ByHash(node.right_keys, count)),
    )


def _by_hash(side: Node, wanted: ByHash) -> Node:
    if lies_by(side) == wanted:
        return side
    return Exchange(side, wanted, "rows with equal keys must meet")


def _count(size: int, sizes: Sizes) -> int:
    return min(sizes.partitions_max, max(1, -(-size // sizes.partition_bytes_target)))


def _serves(placement: Placement, keys: tuple[str, ...]) -> bool:
    """Whether rows that agree in `keys` lie together already."""
    if isinstance(placement, ToOne):
        return True
    return bool(placement.keys) and set(placement.keys) <= set(keys)


def _renamed(placement: Placement | None, names: dict[str, str]) -> Placement | None:
    if not isinstance(placement, ByHash):
        return placement
    new = [names.get(f'"{key}"') for key in placement.keys]
    if any(name is None for name in new):
        return None
    return ByHash(tuple(name for name in new if name is not None), placement.partitions)


def _kept(placement: Placement | None, node: Join) -> Placement | None:
    names = {
        f'"{column.source}"': column.name
        for column in node.columns
        if column.side in ("left", "key")
    }
    return _renamed(placement, names)
