"""Divides a stage into tasks: what each task reads of every leaf of the stage's tree.

Invariant: every row of every leaf is read by exactly one task, or by all if it is broadcast, or by
all tasks among which a skewed partition of the other side is split. Tasks are numbered in the
order of their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from millrace.config import Config
from millrace.execute.map_task import FilePart, ShufflePart
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ByHash, ByRange, InPlace
from millrace.plan.nodes.read_stage import ReadStage, is_broadcast, leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.partition_reads import (
    ReadSide,
    TaskReadLimits,
    can_be_split,
    plan_reads,
    reads_text,
    shared_leaves,
)
from millrace.plan.planner.stages import Stage
from millrace.scan.splits import MapInput, cut
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest

_COPY_WORTH: Final = 16
"""A part of a file is so many times larger than what each task reads beside it, if it can be."""
Part = FilePart | ShufflePart
_Parts = dict[int, Part]
"""What a task reads of each leaf, by the leaf's identity."""


@dataclass(frozen=True, slots=True)
class TaskShare:
    """One task of a stage: the tree it runs, and what it reads of each leaf of that tree."""

    root: Node
    parts: tuple[Part, ...]


def share_out(
    stage: Stage,
    done: Mapping[int, Shuffle],
    config: Config,
    *,
    kept_partitions: Collection[int] = (),
) -> tuple[list[TaskShare], list[str]]:
    """The tasks of a stage, given its inputs, and the choices made for them, in words.

    Partitions of the stages in `kept_partitions` are neither merged nor split.
    """
    sources = {number: position for position, number in enumerate(stage.reads)}
    manifests = {number: done[number].manifest for number in stage.reads}
    target = config.split_bytes_target
    if stage.placement is None:
        target = min(target, config.result_split_bytes_target)
    # Each task puts all rows that are broadcast into a table of its own before it reads a row.
    everywhere = {leaf.stage for leaf in stage.leaves if is_broadcast(leaf)}  # type: ignore[union-attr]
    copied = sum(sum(manifests[number].partition_bytes) for number in everywhere)
    target = max(target, min(_COPY_WORTH * copied, config.one_task_bytes_max * _COPY_WORTH))
    if stage.alone:
        sharing = _Sharing(sources, manifests, config, target)
        whole = tuple(sharing.whole(leaf) for leaf in stage.leaves)
        return [TaskShare(stage.root, whole)], []
    shares, notes = [], []
    for root in stage.branches:
        reading, chosen = _reading(root, sources, done, config, kept_partitions)
        notes += chosen
        sharing = _Sharing(sources, manifests, config, target, reading)
        shares += [
            TaskShare(root, tuple(parts[id(leaf)] for leaf in leaves(root)))
            for parts in sharing.tasks(root)
        ]
    return shares, notes


def _reading(
    root: Node,
    sources: Mapping[int, int],
    done: Mapping[int, Shuffle],
    config: Config,
    kept_partitions: Collection[int],
) -> tuple[dict[int, list[Part]], list[str]]:
    """How joined partitions are read, by leaf, and the choices in words; empty: one by one."""
    met = [
        leaf
        for leaf in shared_leaves(root)
        if isinstance(leaf, ReadStage)
        and isinstance(leaf.placement, ByHash)
        and leaf.stage not in kept_partitions
    ]
    if not met or len(met) < len(shared_leaves(root)):
        return {}, []
    splittable = can_be_split(root)
    sides = [
        ReadSide(
            done[leaf.stage].manifest.partition_bytes,
            partial(_bytes_by_output, done[leaf.stage]) if id(leaf) in splittable else None,
        )
        for leaf in met
    ]
    limits = TaskReadLimits(
        together_bytes_max=config.read_together_bytes_max,
        skew_bytes_min=config.skew_bytes_min,
        skew_factor=config.skew_factor,
        split_bytes_target=config.partition_bytes_target,
        tasks_min=config.reduce_tasks_min,
    )
    pieces = plan_reads(sides, limits)
    parts: dict[int, list[Part]] = {}
    for side, leaf in enumerate(met):
        parts[id(leaf)] = [
            ShufflePart(
                sources[leaf.stage],
                piece.partitions,
                piece.outputs if piece.split_side == side else None,
                piece.rows if piece.split_side == side else None,
            )
            for piece in pieces
        ]
    return parts, reads_text(pieces, len(sides[0].partition_bytes))


def _bytes_by_output(shuffle: Shuffle, partition: int) -> list[int]:
    sizes: list[int] = shuffle.entries(partition)["bytes"].tolist()
    return sizes


@dataclass(frozen=True, slots=True)
class _Sharing:
    sources: Mapping[int, int]
    manifests: Mapping[int, Manifest]
    config: Config
    split_bytes_target: int
    reading: Mapping[int, list[Part]] = field(default_factory=dict)

    def whole(self, leaf: Scan | ReadStage) -> Part:
        """All rows of a leaf."""
        if isinstance(leaf, Scan):
            return FilePart(leaf.source.reader(leaf.columns), tuple(self._inputs(leaf)))
        partitions = tuple(range(self.manifests[leaf.stage].partitions))
        return ShufflePart(self.sources[leaf.stage], partitions)

    def tasks(self, node: Node) -> list[_Parts]:
        """For each task what it reads of the leaves below a node."""
        if isinstance(node, Scan | ReadStage):
            return [{id(node): part} for part in self._pieces(node)]
        everywhere = {
            id(leaf): self.whole(leaf)
            for child in node.children
            if is_broadcast(child)
            for leaf in leaves(child)
        }
        sides = [self.tasks(child) for child in node.children if not is_broadcast(child)]
        assert len({len(side) for side in sides}) == 1, "sides that meet lie alike"
        return [_joined(everywhere, *parts) for parts in zip(*sides, strict=True)]

    def _pieces(self, leaf: Scan | ReadStage) -> list[Part]:
        if isinstance(leaf, Scan):
            reader = leaf.source.reader(leaf.columns)
            return [FilePart(reader, (split,)) for split in self._inputs(leaf)]
        if id(leaf) in self.reading:
            return self.reading[id(leaf)]
        source, manifest = self.sources[leaf.stage], self.manifests[leaf.stage]
        match leaf.placement:
            case InPlace():
                every = tuple(range(manifest.partitions))
                return [
                    ShufflePart(source, every, outputs=(number,))
                    for number in range(len(manifest.chosen))
                ]
            case ByRange(descending=True):
                numbers = list(reversed(range(manifest.partitions)))
            case _:
                numbers = list(range(manifest.partitions))
        return [ShufflePart(source, (number,)) for number in numbers]

    def _inputs(self, scan: Scan) -> list[MapInput]:
        return cut(
            scan.source.shapes,
            split_bytes_target=self.split_bytes_target,
            map_tasks_max=self.config.map_tasks_max,
        )


def _joined(*parts: Mapping[int, Part]) -> _Parts:
    return {leaf: part for some in parts for leaf, part in some.items()}
