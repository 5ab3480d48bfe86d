"""Rows of a Spark DataFrame: as a source of a plan, and once they were taken in and lie at rest.

A DataFrame's rows pass through Spark once, before the plan is cut: then their size is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.plan.nodes.node import Leaf, Node, ReadStage, only, with_new_children
from millrace.plan.nodes.placement import InPlace


@dataclass(frozen=True, slots=True, eq=False)
class FrameScan(Leaf):
    """Rows of a DataFrame that was not taken in yet. `version` names them for good."""

    frame: object
    whole: pa.Schema
    version: str | None
    columns: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns that are read."""
        return pa.schema([self.whole.field(name) for name in self.columns])

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Only the columns that are wanted; at least one, so that rows can be counted."""
        kept = tuple(name for name in self.columns if name in wanted)
        return replace(self, columns=kept or self.columns[:1]), ()

    def describe(self) -> str:
        """Its version and columns."""
        named = "" if self.version is None else f" version {self.version}"
        return f"take in DataFrame{named}, columns {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, eq=False)
class TakenIn(ReadStage):
    """Rows of a DataFrame at rest: read as a stage's, by a number below 0 that no stage has."""

    bytes: int
    text: str

    def describe(self) -> str:
        """The DataFrame."""
        return self.text


def taken_in(scan: FrameScan, number: int, columns: pa.Schema, size: int) -> Node:
    """What a DataFrame's scan reads, once it was taken in with these columns."""
    assert number < 0, "numbers from 0 on are stages"
    rows = TakenIn(number, columns, InPlace(), size, scan.describe())
    return only(rows, scan.columns)


def frames_of(plan: Node) -> list[FrameScan]:
    """The DataFrames that a plan reads, each once, with all columns that are read somewhere."""
    found: dict[int, FrameScan] = {}
    for scan in _scans(plan):
        known = found.setdefault(id(scan.frame), scan)
        both = {*known.columns, *scan.columns}
        columns = tuple(name for name in scan.whole.names if name in both)
        found[id(scan.frame)] = replace(known, columns=columns)
    return list(found.values())


def with_frames(plan: Node, instead: Callable[[FrameScan], Node]) -> Node:
    """The plan with something else in the place of its DataFrames."""
    if isinstance(plan, FrameScan):
        return instead(plan)
    return with_new_children(plan, [with_frames(child, instead) for child in plan.children])


def _scans(node: Node) -> list[FrameScan]:
    if isinstance(node, FrameScan):
        return [node]
    return [scan for child in node.children for scan in _scans(child)]
