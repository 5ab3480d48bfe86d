"""Rows of files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.plan.nodes.node import Leaf, Node
from millrace.text import counted

if TYPE_CHECKING:
    from millrace.scan.source import FileSource


@dataclass(frozen=True, slots=True, eq=False)
class Scan(Leaf):
    """Rows of files."""

    source: FileSource
    columns: tuple[str, ...]

    def make_schema(self) -> pa.Schema:
        """Columns that are read."""
        return pa.schema([self.source.schema.field(name) for name in self.columns])

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Only the columns that are needed; at least one, so that rows can be counted."""
        kept = tuple(name for name in self.columns if name in needed)
        return replace(self, columns=kept or self.columns[:1]), ()

    def describe(self) -> str:
        """Format, files and columns."""
        files = counted(len(self.source.shapes), "file")
        return f"scan {self.source.format}, {files}, columns {', '.join(self.columns)}"
