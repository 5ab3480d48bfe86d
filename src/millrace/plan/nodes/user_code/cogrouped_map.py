"""Users' functions over pairs of groups: the rows of two inputs with equal keys.

Rows of both inputs come in one stream, sorted by their keys and then by their side. Columns of the
other side are null in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.user_code.user_function import (
    Batches,
    FunctionCall,
    GroupPairs,
    UserFunction,
)


@dataclass(frozen=True, slots=True, eq=False)
class MapPairs(FunctionNode):
    """The rows that a function makes of each pair of groups: applyInArrow and applyInPandas."""

    child: Node
    function: UserFunction
    keys: tuple[str, ...]
    pairs: GroupPairs

    def make_schema(self) -> pa.Schema:
        """The columns that the function returns."""
        return pa.schema(list(self.function.result))

    @property
    def streams(self) -> bool:
        """The function gets the rows of both groups at once."""
        return True

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self.function.name

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """What calls the function for each pair of groups."""
        return CallOverPairs(
            self.function, self.keys, self.pairs, self.child.schema, self.schema, time_zone
        )

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """All columns: only the function knows which it needs."""
        del needed
        return self, ({*self.keys, *self.pairs.columns},)

    def describe(self) -> str:
        """The function and its columns."""
        listed = ", ".join(self.schema.names)
        return f"call {self.name} for each pair of groups to columns {listed}"

    def identity(self) -> str:
        """The identity of the function, and of what it sees."""
        return f"pairs of {self.function.identity()} over {self.pairs} by {self.keys}"


@dataclass(frozen=True, slots=True)
class CallOverPairs:
    """Calls a function over each pair of groups."""

    function: UserFunction
    keys: tuple[str, ...]
    pairs: GroupPairs
    child: pa.Schema
    schema: pa.Schema
    time_zone: str

    def __call__(self, batches: Batches) -> Batches:
        """The rows that the function returns."""
        call = FunctionCall(column="", function=self.function, arguments=())
        caller = self.function.caller
        for made in caller([call], self.child, self.time_zone, self.keys, self.pairs)(batches):
            yield made.cast(self.schema)
