"""Puts exchanges into a plan, only where rows have to move to other tasks.

Invariant: an operator that needs rows with equal keys in one task gets them so. There is no
exchange where rows are placed right already, and none at all if the inputs fit one task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from millrace.config import MIB
from millrace.plan.nodes.aggregate import (
    Aggregate,
    FinalAggregate,
    GroupingSetPartials,
    PartialAggregate,
)
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.exchange import Exchange, Repartition
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.frame_scan import SavedFrameRead
from millrace.plan.nodes.in_one_task import InOneTask, needs_rows_of_many_tasks
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.map_batches import is_spread_over_tasks
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.placement import (
    ByHash,
    InPlace,
    Placement,
    ToOne,
    brings_together,
)
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.nodes.sort import Sort, range_of
from millrace.plan.nodes.union import Union
from millrace.plan.planner.partition_pruning import MatchingFiles
from millrace.plan.planner.row_estimates import RowEstimates
from millrace.plan.planner.shared_parts import SharedReads
from millrace.scan.source import FileSource

GATHER: Final = ToOne(broadcast=False)
BROADCAST: Final = ToOne(broadcast=True)
ASKED_FOR: Final = "asked for"
TO_BE_KEPT: Final = "to be kept"
SEVERAL_READERS: Final = "read by several parts"
COPIES_FACTOR: Final = 4
"""A side up to this many times `broadcast_bytes_max` is broadcast if what its tasks read again is
fewer bytes than an exchange of both sides moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Limits that decide how a plan is cut."""

    one_task_bytes_max: int
    broadcast_bytes_max: int
    partition_bytes_target: int
    partitions_max: int
    partitions_min: int = 1
    split_bytes_target: int = 256 * MIB
    result_split_bytes_target: int = 64 * MIB
    reduced_rows_min: int = 1_000_000
    """A side of a join with fewer rows, about, is never reduced by the keys of the other one."""
    many_to_a_group: Callable[[FileSource, tuple[str, ...], int], bool] = lambda *_: True
    """Whether a task has many rows to a group of these columns of a source, or one group has much
    more than its part of so many partitions."""
    matching_files: MatchingFiles = lambda source, _condition: source
    """Leaves out files by the names of their folders."""

    def partitions(self, size: int) -> int:
        """The number of partitions for this many bytes: a power of two between the limits.

        One file more seldom changes it then; a change would move every row.
        """
        count = max(1, -(-size // self.partition_bytes_target))
        return min(self.partitions_max, max(self.partitions_min, 1 << (count - 1).bit_length()))


def fits_one_task(plan: Node, sizes: PlanLimits) -> bool:
    """Whether a plan is small enough for one task, and no function is to run in many tasks.

    One task saves exchanges. A plan that needs none, but for broadcasts, is spread over tasks
    earlier: each row of its large input is written, and that is most of the work.
    """
    limit = sizes.one_task_bytes_max
    if _goes_row_by_row(plan, sizes):
        limit = min(limit, sizes.result_split_bytes_target)
    return scanned_bytes(plan) <= limit and not is_spread_over_tasks(plan)


def _goes_row_by_row(node: Node, sizes: PlanLimits) -> bool:
    """Whether each row of a scan goes into the result by itself, beside inputs that are small."""
    if isinstance(node, Scan):
        return True
    if any(node.broadcast_sides()):
        left, right = node.children
        left_whole, right_whole = node.broadcast_sides()
        if right_whole and scanned_bytes(right) <= sizes.broadcast_bytes_max:
            return _goes_row_by_row(left, sizes)
        if left_whole and scanned_bytes(left) <= sizes.broadcast_bytes_max:
            return _goes_row_by_row(right, sizes)
        return False
    is_alone = isinstance(node, Filter | Project)
    return is_alone and _goes_row_by_row(node.children[0], sizes)


def insert_exchanges(plan: Node, sizes: PlanLimits) -> Node:
    """The plan with exchanges; if its inputs fit one task, only those that save rows."""
    if fits_one_task(plan, sizes):
        return _keep_durable(plan, SharedReads(plan))
    return _with_exchanges(plan, sizes, SharedReads(plan))


def scanned_bytes(node: Node) -> int:
    """The bytes that the scans below read, by the metadata of their files; shared rows once.

    Once they are placed, shared rows are one exchange that several nodes have as their child.
    """
    return _scanned_bytes(node, set())


def _scanned_bytes(node: Node, shared: set[int]) -> int:
    if isinstance(node, Scan):
        return node.source.bytes_of(node.columns)
    if isinstance(node, SavedFrameRead):
        return node.bytes
    if isinstance(node, MadeOnce | Exchange):
        if id(node) in shared:
            return 0
        shared.add(id(node))
    return sum(_scanned_bytes(child, shared) for child in node.children)


def _keep_durable(node: Node, shared: SharedReads) -> Node:
    """One task does everything, so exchanges are only where rows are saved."""
    if id(node) in shared.placed:
        return shared.placed[id(node)]
    children = [_keep_durable(child, shared) for child in node.children]
    if isinstance(node, MadeOnce):
        rows = with_new_children(node, children)
        saved = rows if shared.is_query(node) else Exchange(children[0], GATHER, SEVERAL_READERS)
        shared.placed[id(node)] = saved
        return saved
    if not isinstance(node, Repartition):
        return with_new_children(node, children)
    if isinstance(node.placement, InPlace):
        return Exchange(children[0], GATHER, TO_BE_KEPT)
    return children[0]


def _with_exchanges(node: Node, sizes: PlanLimits, shared: SharedReads) -> Node:
    if id(node) in shared.placed:
        return shared.placed[id(node)]
    if _is_small(node, sizes) and shared.all_below(node):
        return InOneTask(node)
    children = [_with_exchanges(child, sizes, shared) for child in node.children]
    placed = with_new_children(node, children)
    if not isinstance(placed, MadeOnce):
        return _exchanged(placed, sizes)
    rows = placed.child
    saved = rows if _is_near_exchange(rows) else Exchange(rows, InPlace(), SEVERAL_READERS)
    shared.placed[id(node)] = saved
    return saved


def _exchanged(placed: Node, sizes: PlanLimits) -> Node:
    """An operator over rows that are placed as it needs them."""
    match placed:
        case Union():
            return with_new_children(placed, [_apart(child) for child in placed.children])
        case Repartition(child=child, placement=placement):
            kept = isinstance(placement, InPlace)
            return Exchange(child, placement, TO_BE_KEPT if kept else ASKED_FOR)
        case Aggregate():
            return _place_aggregate(placed, sizes)
        case _ if any(placed.broadcast_sides()):
            return _place_join(placed, sizes)
        case Sort():
            return _place_sort(placed, sizes)
        case DropDuplicates(child=child, keys=keys) if not brings_together(
            child.output_placement, keys
        ):
            by = ByHash(keys, sizes.partitions(scanned_bytes(placed)))
            return replace(placed, child=Exchange(placed, by, "rows with equal keys must meet"))
        case Limit(child=child, rows=rows) if child.output_placement != GATHER:
            if rows is not None:
                child = replace(placed, rows=rows + placed.skipped, skipped=0)
            return replace(placed, child=Exchange(child, GATHER, "the first rows of all"))
        case Limit():
            return placed
        case _ if placed.requires_shuffle():
            return _bring_together(placed, sizes)
        case _:
            return placed


def _is_near_exchange(node: Node) -> bool:
    """Whether rows are partitioned by keys, and little is done after the exchange.

    Then the exchange has several readers: each finishes the rows, and needs no further exchange.
    """
    while isinstance(node, Project | Filter | FinalAggregate):
        node = node.child
    return isinstance(node, Exchange) and isinstance(node.placement, ByHash)


def _is_small(node: Node, sizes: PlanLimits) -> bool:
    """Whether a subtree needs an exchange although one task could read all its inputs."""
    limit = min(sizes.one_task_bytes_max, sizes.partition_bytes_target)
    return (
        needs_rows_of_many_tasks(node) and not _repartitions(node) and scanned_bytes(node) <= limit
    )


def _repartitions(node: Node) -> bool:
    return isinstance(node, Repartition) or any(map(_repartitions, node.children))


def _apart(node: Node) -> Node:
    """A side of a union in a stage of its own, if one task makes its rows."""
    return Exchange(node, GATHER, "made in one task") if isinstance(node, InOneTask) else node


def _place_aggregate(node: Aggregate, sizes: PlanLimits) -> Node:
    if brings_together(node.child.output_placement, node.keys):
        return node
    placement: Placement
    partitions = 1
    if node.keys:
        partitions = sizes.partitions(scanned_bytes(node))
        placement = ByHash(node.keys, partitions)
        why = "rows of a group must meet"
    else:
        placement = GATHER
        why = "one row is made of all rows"
    if node.mergeable and _worth_partial(node, sizes, partitions):
        return FinalAggregate(Exchange(_partial_aggregate(node), placement, why), node)
    return replace(node, child=Exchange(node.child, placement, why))


def _partial_aggregate(node: Aggregate) -> Node:
    """The partial aggregates of a task: of several sets of keys from those of all keys, if it can.

    Else each row would be aggregated once for each set.
    """
    expand = node.child
    if (
        isinstance(expand, Expand)
        and node.keys == (*expand.keys, expand.number)
        and any(map(all, expand.sets))
        and node.adds_up
        and not any({*node.keys} & {*aggregate.columns} for aggregate in node.aggregates)
    ):
        of_all = PartialAggregate(expand.child, expand.keys, node.aggregates)
        return GroupingSetPartials(of_all, expand.sets, expand.number)
    return PartialAggregate(expand, node.keys, node.aggregates)


def _worth_partial(node: Aggregate, sizes: PlanLimits, partitions: int) -> bool:
    """Whether partial aggregates pay off: not if nearly every row is a group of its own."""
    scanned = _scanned(node.child, node.keys)
    return scanned is None or sizes.many_to_a_group(*scanned, partitions)


def _scanned(node: Node, names: tuple[str, ...]) -> tuple[FileSource, tuple[str, ...]] | None:
    """The source of unchanged columns, and their names in it."""
    match node:
        case Scan(source=source) if names:
            return source, names
        case Filter(child=child):
            return _scanned(child, names)
        case Project(child=child):
            (sources,) = node.pushdown_columns(frozenset(names))
            if sources is None:
                return None
            return _scanned(child, tuple(sources[name] for name in names))
        case _:
            return None


def _place_join(node: Node, sizes: PlanLimits) -> Node:
    """Broadcast a small side where the join allows it, else exchange both sides."""
    left, right = node.children
    left_whole, right_whole = node.broadcast_sides()
    if right_whole and isinstance(node, Join) and not node.left_keys:
        why = "there are no keys to meet by"
        return node.with_children(left, Exchange(right, BROADCAST, why))
    if right_whole and _worth_broadcast(right, left, sizes):
        return node.with_children(left, Exchange(right, BROADCAST, "the right side is small"))
    if left_whole and _worth_broadcast(left, right, sizes):
        return node.with_children(Exchange(left, BROADCAST, "the left side is small"), right)
    return _bring_together(node, sizes)


def _worth_broadcast(side: Node, other: Node, sizes: PlanLimits) -> bool:
    """Whether a side is small, or its copies for further tasks are less than an exchange moves.

    A byte of a copy, read and hashed again, costs about as much CPU as a byte that is exchanged
    (20 million rows of 341 MiB with 2 million of 52 MiB). One task hashes the side in any case.
    """
    size = scanned_bytes(side)
    if size <= sizes.broadcast_bytes_max:
        return True
    if size > COPIES_FACTOR * sizes.broadcast_bytes_max or other.output_placement is not None:
        return False
    moved = scanned_bytes(other) * RowEstimates().kept_part(other)
    return size <= moved and size * (_scan_tasks(other, sizes) - 1) <= moved + size


def _scan_tasks(node: Node, sizes: PlanLimits) -> int:
    """The number of tasks that read the files below, but for those of sides that are broadcast."""
    if isinstance(node, Exchange):
        return 0
    if isinstance(node, Scan):
        return sum(-(-shape.bytes // sizes.split_bytes_target) for shape in node.source.shapes)
    return sum(_scan_tasks(child, sizes) for child in node.children)


def _place_sort(node: Sort, sizes: PlanLimits) -> Node:
    if node.child.output_placement == GATHER:
        return node
    if node.rows is not None:
        first = replace(node, rows=node.rows + node.skipped, skipped=0)
        return replace(node, child=Exchange(first, GATHER, "the first rows of all"))
    if node.skipped:
        return replace(node, child=Exchange(node.child, GATHER, "the first rows are left out"))
    by = range_of(node.order, sizes.partitions_max)
    if by is None:
        return replace(node, child=Exchange(node.child, GATHER, "this order is made in one place"))
    measured = Exchange(node.child, InPlace(), "bounds are found in these rows")
    return replace(node, child=Exchange(measured, by, "parts of the order follow one another"))


def _bring_together(node: Node, sizes: PlanLimits) -> Node:
    """Exchange all children so that rows with equal keys meet; without keys, all rows."""
    keys = node.partition_keys()
    if not any(keys):
        gathered = [_placed(child, GATHER, "all rows must meet") for child in node.children]
        return with_new_children(node, gathered)
    if len(keys) == 1 and brings_together(node.children[0].output_placement, keys[0]):
        return node
    count = sizes.partitions(max(scanned_bytes(child) for child in node.children))
    for child, by in zip(node.children, keys, strict=True):
        if isinstance(child.output_placement, ByHash) and child.output_placement.keys == by:
            count = child.output_placement.partitions
    placed = [
        _placed(child, ByHash(by, count), "rows with equal keys must meet")
        for child, by in zip(node.children, keys, strict=True)
    ]
    return with_new_children(node, _measured_first(node, placed, sizes))


def _measured_first(join: Node, sides: list[Node], sizes: PlanLimits) -> list[Node]:
    """Sides of a join, where a filter of groups may leave few rows: these are a stage of their own.

    It is measured before the other side runs, which may then need no exchange, or a small one.
    """
    if not isinstance(join, Join):
        return sides
    estimates = RowEstimates()
    found = list(sides)
    for side, (node, other) in enumerate((sides, sides[::-1])):
        if _filters_groups(node) and estimates.rows(other) >= sizes.reduced_rows_min:
            placement = node.output_placement
            assert placement is not None, "sides of a join were placed"
            found[side] = Exchange(node, placement, "few groups may be left")
    return found


def _filters_groups(node: Node) -> bool:
    """Whether a condition on the values of groups is asked, on rows that are placed already."""
    is_asked = False
    while isinstance(node, Project | Filter):
        is_asked = is_asked or isinstance(node, Filter)
        node = node.child
    return is_asked and isinstance(node, FinalAggregate | Aggregate)


def _placed(node: Node, placement: Placement, why: str) -> Node:
    return node if node.output_placement == placement else Exchange(node, placement, why)
