"""A function of the user's over batches of rows, as an operator of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.errors import UserError
from millrace.identity.functions import function_identity
from millrace.identity.schemas import check_names, plain_schema
from millrace.identity.unrecognisable import Unrecognisable
from millrace.plan.nodes.node import Leaf, Node, OverOne, Repartition
from millrace.plan.nodes.placement import InPlace, Placement, ToOne

Function = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True, slots=True, eq=False)
class MapBatches(OverOne):
    """What a function makes of the child's rows, batch by batch."""

    child: Node
    function: Function
    columns: pa.Schema
    version: str | None

    @property
    def schema(self) -> pa.Schema:
        """What the function is said to return."""
        return self.columns

    @property
    def name(self) -> str:
        """What the function is called."""
        return name_of(self.function)

    @property
    def lies(self) -> Placement | None:
        """Rows of one task stay in it; of others a function may make rows with any keys."""
        lies = self.child.lies
        return lies if isinstance(lies, ToOne) else None

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """All columns: only the function knows which it needs."""
        del wanted
        return self, (set(self.child.schema.names),)

    def describe(self) -> str:
        """The function and what it returns."""
        return f"map batches with {self.name} to columns {', '.join(self.schema.names)}"

    def identity(self) -> str:
        """What tells the function from any other; raises `Unrecognisable` where code cannot."""
        if self.version is None:
            return f"code {function_identity(self.function)}"
        return f"{_module_of(self.function)}.{self.name} version {self.version}"


@dataclass(frozen=True, slots=True, eq=False)
class Made(Leaf):
    """Rows that a function makes, as a query over them sees them."""

    columns: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self.columns

    def describe(self) -> str:
        """Where they come from."""
        return "rows of a function"


def plan_map(child: Node, function: Function, schema: pa.Schema, version: str | None) -> Node:
    """A function over a node's rows, once the call is checked."""
    if not callable(function):
        raise UserError(
            f"map_batches() of {type(function).__name__}, which cannot be called\n"
            "  to fix: give a function from a RecordBatch to a RecordBatch, a Table or an iterator"
        )
    call = f"map_batches({name_of(function)})"
    if not isinstance(schema, pa.Schema):
        raise UserError(
            f"{call}: schema is a {type(schema).__name__}\n"
            "  to fix: say what the function returns, pa.schema([('name', pa.string()), ...])"
        )
    if not schema.names:
        raise UserError(f"{call}: schema has no columns\n  to fix: name at least one")
    if version is not None and not isinstance(version, str):
        raise UserError(f"{call}: version is {version!r}\n  to fix: give a text")
    check_names(schema)
    return MapBatches(child, function, plain_schema(schema), version)


def spread_function(node: Node) -> bool:
    """Whether rows are repartitioned for a function: its calls may cost more than its rows."""
    if isinstance(node, MapBatches) and _repartitioned(node.child):
        return True
    return any(spread_function(child) for child in node.children)


def name_of(function: object) -> str:
    """What a function is called in messages; an object that can be called by its class."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def identity_of(node: MapBatches) -> tuple[str | None, str | None]:
    """What tells the node's function from any other, or why that cannot be told."""
    try:
        return node.identity(), None
    except Unrecognisable as unrecognisable:
        return None, f"without version= {node.name} is not recognised: {unrecognisable}"


def _repartitioned(node: Node) -> bool:
    asked = isinstance(node, Repartition) and not isinstance(node.placement, InPlace)
    return asked or any(_repartitioned(child) for child in node.children)


def _module_of(function: object) -> str:
    if isinstance(function, partial):
        return _module_of(function.func)
    return str(getattr(function, "__module__", None) or type(function).__module__)
