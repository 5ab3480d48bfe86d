"""A user's function over batches of rows, as an operator of a plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable
from millrace.plan.nodes.exchange import Repartition
from millrace.plan.nodes.node import Leaf, Node, UnaryNode
from millrace.plan.nodes.placement import InPlace, Placement, ToOne

Function = Callable[[pa.RecordBatch], Any]


class FunctionNode(UnaryNode):
    """An operator that calls a user's function in its tasks. The engine's queries end at it."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The function's name, for messages."""

    @property
    def streams(self) -> bool:
        """Whether the function gets all batches of a task at once, and not each by itself."""
        return False

    @abstractmethod
    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """The function that tasks call, for a session of this time zone."""

    @abstractmethod
    def identity(self) -> str:
        """The identity of the function; raises `Unrecognisable` if its code cannot give one."""

    def advice(self) -> str:
        """What a reason for an unknown identity begins with."""
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class MapBatches(FunctionNode):
    """The rows that a function returns for the child's rows, batch by batch."""

    child: Node
    function: Function
    columns: pa.Schema
    version: str | None

    def make_schema(self) -> pa.Schema:
        """The schema that the user gave."""
        return self.columns

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_of(self.function)

    @property
    def output_placement(self) -> Placement | None:
        """Rows of one task stay in one task. Otherwise none: a function can return any keys."""
        lies = self.child.output_placement
        return lies if isinstance(lies, ToOne) else None

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """All columns: only the function knows which it needs."""
        del needed
        return self, (set(self.child.schema.names),)

    def describe(self) -> str:
        """The function and what it returns."""
        return f"map batches with {self.name} to columns {', '.join(self.schema.names)}"

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """The user's function: it knows of no time zone."""
        del time_zone
        return self.function

    def advice(self) -> str:
        """A version stands for code that is not recognised."""
        return f"without version= {self.name}"

    def identity(self) -> str:
        """The identity of the function; raises `Unrecognisable` if its code cannot give one."""
        if self.version is None:
            return f"code {function_identity(self.function)}"
        return f"{_module_of(self.function)}.{self.name} version {self.version}"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionRows(Leaf):
    """The rows that a function returns, as a leaf of the query above it."""

    columns: pa.Schema

    def make_schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self.columns

    def describe(self) -> str:
        """The source of the batches."""
        return "rows of a function"


def is_spread_over_tasks(node: Node) -> bool:
    """Whether the user repartitions rows for a function, to spread its calls over tasks."""
    if isinstance(node, FunctionNode) and _repartitioned(node.child):
        return True
    return any(is_spread_over_tasks(child) for child in node.children)


def name_of(function: object) -> str:
    """The name of a function in messages; of a callable object, the name of its class."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def identity_of(node: FunctionNode) -> tuple[str | None, str | None]:
    """The identity of the node's function, or the reason that it has none."""
    try:
        return node.identity(), None
    except Unrecognisable as unrecognisable:
        return None, f"{node.advice()} is not recognised: {unrecognisable}"


def _repartitioned(node: Node) -> bool:
    by_user = isinstance(node, Repartition) and not isinstance(node.placement, InPlace)
    return by_user or any(_repartitioned(child) for child in node.children)


def _module_of(function: object) -> str:
    if isinstance(function, partial):
        return _module_of(function.func)
    return str(getattr(function, "__module__", None) or type(function).__module__)
