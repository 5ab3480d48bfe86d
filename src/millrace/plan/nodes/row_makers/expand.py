"""Rows several times, for several sets of keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.plan.nodes.node import Node, UnaryNode


@dataclass(frozen=True, slots=True, eq=False)
class Expand(UnaryNode):
    """Each row once for each set of keys; keys that a set lacks are null in it.

    `sets` says for each set which of the keys it has. The column `number` has the set's position.
    """

    child: Node
    keys: tuple[str, ...]
    sets: tuple[tuple[bool, ...], ...]
    number: str

    def make_schema(self) -> pa.Schema:
        """The child's columns and the number of the set."""
        return pa.schema([*self.child.schema, pa.field(self.number, pa.int32())])

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and the keys."""
        return self, ((needed - {self.number}) | {*self.keys},)

    def describe(self) -> str:
        """The sets of keys."""
        return f"expand {sets_text(self.keys, self.sets)}"


def sets_text(keys: Sequence[str], sets: Sequence[Sequence[bool]]) -> str:
    """Sets of keys in words."""
    texts = [
        "(" + ", ".join(key for key, has in zip(keys, some, strict=True) if has) + ")"
        for some in sets
    ]
    return f"for {', '.join(texts)}"
