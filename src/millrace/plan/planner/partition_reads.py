"""Decides which task reads which partitions, once these are measured.

One task reads several small partitions. Several tasks read parts of a skewed one, where the
operators above allow it. Invariant: the choice depends on sizes and limits alone, and every
partition of every side is read whole: by one task, or by several that share the map outputs of one
side, or the rows of a large one, and read all of the other sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import pyarrow as pa

from millrace.plan.nodes.aggregate import PartialAggregate
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import KEEPS_LEFT, KEEPS_RIGHT, Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ByHash
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.read_stage import ReadStage, is_broadcast
from millrace.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReadLimits:
    """Sizes that decide how partitions are read."""

    together_bytes_max: int
    skew_bytes_min: int
    skew_factor: int
    split_bytes_target: int
    tasks_min: int = 1


@dataclass(frozen=True, slots=True)
class ReadSide:
    """A stage whose partitions a task reads together with those of other stages.

    `split` gives the bytes of a partition in each map output; None if it must stay whole.
    """

    partition_bytes: Sequence[int]
    split: Callable[[int], Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class RowsPart:
    """One of several parts of the rows of a map output's partition, which follow one another."""

    number: int
    parts: int

    def of(self, batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        """This part of so many rows."""
        begin, end = (rows * number // self.parts for number in (self.number, self.number + 1))
        position = 0
        for batch in batches:
            if position >= end:
                return
            first, last = max(begin - position, 0), min(end - position, batch.num_rows)
            if first < last:
                yield batch.slice(first, last - first)
            position += batch.num_rows


@dataclass(frozen=True, slots=True)
class TaskRead:
    """The partitions that one task reads; of the split side only some map outputs, or rows."""

    partitions: tuple[int, ...]
    split_side: int | None = None
    outputs: tuple[int, ...] = ()
    rows: RowsPart | None = None


def plan_reads(sides: Sequence[ReadSide], limits: TaskReadLimits) -> list[TaskRead]:
    """The tasks that read these sides, in order of their partitions."""
    reads: list[TaskRead] = []
    totals = [sum(sizes) for sizes in zip(*(s.partition_bytes for s in sides), strict=True)]
    for group in _groups(totals, limits):
        parts = _split(sides, group[0], limits) if len(group) == 1 else []
        reads += parts or [TaskRead(group)]
    return reads


def _groups(sizes: Sequence[int], limits: TaskReadLimits) -> list[tuple[int, ...]]:
    """Groups of small neighbours, but not fewer than the least number of tasks."""
    groups = group_neighbours(sizes, limits.together_bytes_max)
    if len(groups) < limits.tasks_min:
        groups = group_neighbours(sizes, sum(sizes) // limits.tasks_min)
    if len(groups) < limits.tasks_min:
        groups = [(number,) for number in range(len(sizes))]
    return groups


def group_neighbours(sizes: Sequence[int], bytes_max: int) -> list[tuple[int, ...]]:
    """Groups of neighbours up to a size, each partition exactly once.

    They are grouped by number, not by size, so that a partition that grows moves few others.
    """
    groups: list[list[int]] = []
    group_bytes = 0
    for number, size in enumerate(sizes):
        if groups and group_bytes + size <= bytes_max:
            groups[-1].append(number)
            group_bytes += size
        else:
            groups.append([number])
            group_bytes = size
    return [tuple(group) for group in groups]


def reads_text(reads: Sequence[TaskRead], partitions: int) -> list[str]:
    """The choice in words; nothing if each task reads one partition."""
    lines = []
    grouped = [read for read in reads if len(read.partitions) > 1]
    if grouped:
        few = sum(len(read.partitions) for read in grouped)
        by = counted(len(grouped), "task")
        lines.append(f"{few} of {partitions} partitions are small and read by {by}")
    for number in sorted({p.partitions[0] for p in reads if p.split_side is not None}):
        parts = sum(p.partitions == (number,) for p in reads)
        lines.append(f"partition {number} is skewed and read in {parts} parts")
    return lines


def _split(sides: Sequence[ReadSide], number: int, limits: TaskReadLimits) -> list[TaskRead]:
    """The parts of a skewed partition, by its largest side that can be split; none if none can."""
    skewed = [
        (side.partition_bytes[number], side_number)
        for side_number, side in enumerate(sides)
        if side.split is not None and _is_skewed(side.partition_bytes, number, limits)
    ]
    if not skewed:
        return []
    _, side_number = max(skewed)
    by_output = sides[side_number].split
    assert by_output is not None, "only such sides were looked at"
    sizes, target = by_output(number), limits.split_bytes_target
    reads: list[TaskRead] = []
    for outputs in group_neighbours(sizes, target):
        parts = -(-sizes[outputs[0]] // target) if len(outputs) == 1 else 1
        rows = [RowsPart(part, parts) for part in range(parts)] if parts > 1 else [None]
        reads += [TaskRead((number,), side_number, outputs, part) for part in rows]
    return reads if len(reads) > 1 else []


def _is_skewed(sizes: Sequence[int], number: int, limits: TaskReadLimits) -> bool:
    size = sizes[number]
    return size >= limits.skew_bytes_min and size > limits.skew_factor * median(sizes)


def can_be_split(node: Node) -> set[int]:
    """Leaves whose rows several tasks can share while each reads all other leaves; by identity.

    Operators above such a leaf read its rows one by one, or merge partial results later. Of an
    outer join only the kept side can be shared: each of its rows is read by one task, which sees
    all matches of that row. A full join keeps both sides, so neither can be shared.
    """
    match node:
        case ReadStage(placement=ByHash()):
            return {id(node)}
        case Project(child=child) | Filter(child=child) | PartialAggregate(child=child):
            return can_be_split(child)
        case Join(left=left, right=right, how=how):
            if is_broadcast(right):
                return can_be_split(left) if how in KEEPS_LEFT else set()
            if is_broadcast(left):
                return can_be_split(right) if how in KEEPS_RIGHT else set()
            splittable = can_be_split(left) if how in KEEPS_LEFT else set()
            return splittable | can_be_split(right) if how in KEEPS_RIGHT else splittable
        case _:
            return set()


def shared_leaves(node: Node) -> list[Node]:
    """The leaves below a node that are not broadcast: tasks share their rows."""
    if not node.children:
        return [node]
    return [
        leaf for child in node.children if not is_broadcast(child) for leaf in shared_leaves(child)
    ]
