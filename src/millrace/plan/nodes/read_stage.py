"""The rows of an earlier stage, and the leaves of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from millrace.plan.nodes.exchange import Exchange
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.nodes.placement import Placement, ToOne
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import MadeOnce


@dataclass(frozen=True, slots=True, eq=False)
class ReadStage(Leaf):
    """The output of an earlier stage: the partition of a task or, if broadcast, all of it."""

    stage: int
    columns: pa.Schema
    placement: Placement

    def make_schema(self) -> pa.Schema:
        """The stage's columns."""
        return self.columns

    @property
    def broadcast(self) -> bool:
        """Whether every task reads all of it."""
        return isinstance(self.placement, ToOne) and self.placement.broadcast

    @property
    def output_placement(self) -> Placement | None:
        """The placement that the stage wrote."""
        return None if self.broadcast else self.placement

    def describe(self) -> str:
        """The stage."""
        return f"read {'all of ' if self.broadcast else ''}stage {self.stage}"


def is_broadcast(node: Node) -> bool:
    """Whether every task reads all rows of a node."""
    return isinstance(node, Exchange | ReadStage) and (
        isinstance(node.placement, ToOne) and node.placement.broadcast
    )


def leaves(node: Node) -> list[Scan | ReadStage]:
    """The scans and stage reads below a node, left to right; those of shared rows once."""
    return list(_leaves(node, set()))


def _leaves(node: Node, shared: set[int]) -> Iterator[Scan | ReadStage]:
    if isinstance(node, Scan | ReadStage):
        yield node
    if isinstance(node, MadeOnce):
        if id(node) in shared:
            return
        shared.add(id(node))
    for child in node.children:
        yield from _leaves(child, shared)
