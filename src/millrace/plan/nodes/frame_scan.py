"""Rows of a Spark DataFrame: as a source of a plan, and as saved rows.

A DataFrame's rows pass through Spark once, before the plan is cut. Then their size is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.plan.nodes.node import Leaf, Node, with_new_children
from millrace.plan.nodes.placement import InPlace
from millrace.plan.nodes.project import select_only
from millrace.plan.nodes.read_stage import ReadStage

Recognised = tuple[str | None, str | None]
"""What identifies rows in later runs, or the reason that nothing does."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameScan(Leaf):
    """Rows of a DataFrame that are not saved yet. `version` identifies them in later runs.

    `reason` says why Spark computes them, where a part of a plan was left to Spark. `recognise`
    says when they are needed what identifies them, where a user gave no version.
    """

    frame: object
    whole: pa.Schema
    version: str | None
    columns: tuple[str, ...]
    reason: str = ""
    recognise: Callable[[], Recognised] | None = None

    def make_schema(self) -> pa.Schema:
        """Columns that are read."""
        return pa.schema([self.whole.field(name) for name in self.columns])

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Only the columns that are needed; at least one, so that rows can be counted."""
        kept = tuple(name for name in self.columns if name in needed)
        return replace(self, columns=kept or self.columns[:1]), ()

    def describe(self) -> str:
        """Its version and columns."""
        named = "" if self.version is None else f" version {self.version}"
        listed = f"columns {', '.join(self.columns)}"
        if self.reason:
            return f"on Spark: a part of the DataFrame, {listed}, because {self.reason}"
        return f"take in DataFrame{named}, {listed}"


@dataclass(frozen=True, slots=True, eq=False)
class SavedFrameRead(ReadStage):
    """Saved rows of a DataFrame, read like those of a stage. Its number is below 0."""

    bytes: int
    text: str

    def describe(self) -> str:
        """The DataFrame."""
        return self.text


def read_saved_frame(scan: FrameScan, number: int, columns: pa.Schema, size: int) -> Node:
    """What replaces the scan of a DataFrame after its rows were saved with these columns."""
    assert number < 0, "numbers from 0 on are stages"
    rows = SavedFrameRead(number, columns, InPlace(), size, scan.describe())
    return select_only(rows, scan.columns)


def frames_of(plan: Node) -> list[FrameScan]:
    """The DataFrames that a plan reads, each once, with all columns that are read somewhere."""
    by_frame: dict[int, FrameScan] = {}
    for scan in _scans(plan):
        known = by_frame.setdefault(id(scan.frame), scan)
        both = {*known.columns, *scan.columns}
        columns = tuple(name for name in scan.whole.names if name in both)
        by_frame[id(scan.frame)] = replace(known, columns=columns)
    return list(by_frame.values())


def with_frames(plan: Node, instead: Callable[[FrameScan], Node]) -> Node:
    """The plan with its DataFrames replaced."""
    if isinstance(plan, FrameScan):
        return instead(plan)
    return with_new_children(plan, [with_frames(child, instead) for child in plan.children])


def _scans(node: Node) -> list[FrameScan]:
    if isinstance(node, FrameScan):
        return [node]
    return [scan for child in node.children for scan in _scans(child)]
