"""Shares out a stage over tasks: what each reads of every leaf of the stage's tree.

Invariant: every row of every leaf is read by exactly one task, or by all if it is broadcast, and
tasks are numbered in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.config import Config
from millrace.plan.join import is_broadcast
from millrace.plan.nodes import Node, ReadStage, Scan, leaves
from millrace.plan.placement import ByRange, InPlace
from millrace.plan.stages import Stage
from millrace.scan.splits import MapInput, cut
from millrace.shuffle.manifest import Manifest
from millrace.spark.map_task import FilePart, ShufflePart

Part = FilePart | ShufflePart
_Parts = dict[int, Part]
"""What a task reads of each leaf, by the leaf's identity."""


@dataclass(frozen=True, slots=True)
class Share:
    """One task of a stage: the tree it runs, and what it reads of each leaf of that tree."""

    root: Node
    parts: tuple[Part, ...]


def share_out(stage: Stage, manifests: Mapping[int, Manifest], config: Config) -> list[Share]:
    """The tasks of a stage, given what the stages it reads have written."""
    sources = {number: place for place, number in enumerate(stage.reads)}
    sharing = _Sharing(sources, manifests, config)
    if stage.alone:
        whole = tuple(sharing.whole(leaf) for leaf in stage.leaves)
        return [Share(stage.root, whole)]
    return [
        Share(root, tuple(parts[id(leaf)] for leaf in leaves(root)))
        for root in stage.branches
        for parts in sharing.tasks(root)
    ]


@dataclass(frozen=True, slots=True)
class _Sharing:
    sources: Mapping[int, int]
    manifests: Mapping[int, Manifest]
    config: Config

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
            return [FilePart(reader, (one,)) for one in self._inputs(leaf)]
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
            split_bytes_target=self.config.split_bytes_target,
            map_tasks_max=self.config.map_tasks_max,
        )


def _joined(*parts: Mapping[int, Part]) -> _Parts:
    return {leaf: part for some in parts for leaf, part in some.items()}
