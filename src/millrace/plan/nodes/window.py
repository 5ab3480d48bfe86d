"""Windows: columns calculated from a row and the rows around it.

Invariant: a window keeps every row of its child, and its values do not depend on how rows are
placed over tasks: rows with equal `order` keep the order of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.sort import SortKey
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import as_type
from millrace.sql.types import SqlType, to_arrow

WindowScope = Literal["ranks", "rows", "frame", "values"]
"""What a function reads: ranks of the order; single rows in turn, without a frame; all rows of the
frame; single rows of the frame."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a frame begins or ends; `offset` is its distance from the current row."""

    sql: str
    offset: float


FIRST: Final = Bound("UNBOUNDED PRECEDING", float("-inf"))
CURRENT_ROW: Final = Bound("CURRENT ROW", 0)
LAST: Final = Bound("UNBOUNDED FOLLOWING", float("inf"))


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows around a row that a function reads, by number or by value of the order."""

    unit: Literal["ROWS", "RANGE"]
    start: Bound
    end: Bound

    def sql(self) -> str:
        """The frame in DuckDB's SQL."""
        return f"{self.unit} BETWEEN {self.start.sql} AND {self.end.sql}"


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """One window function of DuckDB."""

    function: str
    arguments: tuple[str, ...]
    scope: WindowScope
    ignore_nulls: bool = False
    condition: str = ""
    """The rows that an aggregate takes; empty for all rows of the frame."""


@dataclass(frozen=True, slots=True)
class WindowCall:
    """One call as the user wrote it, and the DuckDB functions that its value is made from.

    Its SQL is `around`, with the value of a function of `between` between each two texts.
    """

    functions: tuple[WindowFunction, ...]
    type: SqlType
    columns: frozenset[str]
    around: tuple[str, ...]
    between: tuple[int, ...]

    @classmethod
    def of(
        cls, function: WindowFunction, kind: SqlType, columns: frozenset[str] = frozenset()
    ) -> WindowCall:
        """A call of one function, in its type."""
        around = ("", "") if kind.arrow is not None else tuple(as_type("\0", kind).split("\0"))
        return cls((function,), kind, columns, around, (0,))

    def value(self, values: Sequence[str]) -> str:
        """The SQL over the values of its functions."""
        out = [self.around[0]]
        for number, sql in zip(self.between, self.around[1:], strict=True):
            out += [values[number], sql]
        return "".join(out)


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A new column: an expression with the number of a call between each two zero bytes."""

    name: str
    expression: Expression
    calls: tuple[WindowCall, ...]

    def sql(self, names: Mapping[WindowFunction, str]) -> str:
        """The expression over columns and the values of functions, which have these names."""
        parts = self.expression.sql.split("\0")
        for position in range(1, len(parts), 2):
            call = self.calls[int(parts[position])]
            parts[position] = f"({call.value([names[function] for function in call.functions])})"
        return "".join(parts)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Window(UnaryNode):
    """The rows of the child with new columns. A new column replaces one of the same name."""

    child: Node
    keys: tuple[str, ...]
    order: tuple[SortKey, ...]
    frame: Frame | None
    columns: tuple[WindowColumn, ...]

    def make_schema(self) -> pa.Schema:
        """The child's columns, then the new ones."""
        new = {column.name: to_arrow(column.expression.type) for column in self.columns}
        kept = [
            pa.field(field.name, new.pop(field.name)) if field.name in new else field
            for field in self.child.schema
        ]
        return pa.schema([*kept, *(pa.field(name, kind) for name, kind in new.items())])

    @property
    def functions(self) -> tuple[WindowFunction, ...]:
        """All functions that DuckDB calculates, each once."""
        calls = [call for column in self.columns for call in column.calls]
        return tuple(dict.fromkeys(function for call in calls for function in call.functions))

    @property
    def output_placement(self) -> Placement | None:
        """As the child, unless one of its keys is replaced."""
        new = {column.name for column in self.columns}
        names = [name for name in self.child.schema.names if name not in new]
        return renamed(self.child.output_placement, {name: name for name in names})

    def requires_shuffle(self) -> bool:
        """Rows of a window must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys."""
        return (self.keys,)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on keys, which drop whole partitions."""
        whole = self.keys and columns <= {*self.keys} - {column.name for column in self.columns}
        return ({name: name for name in columns} if whole else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The keys, the order and the columns read; no window if none of its columns is needed."""
        some = tuple(column for column in self.columns if column.name in needed)
        new = {column.name for column in self.columns}
        rest = needed - new
        if not some:
            names = [name for name in self.child.schema.names if name in rest]
            names = names or self.child.schema.names[:1]
            return Project(self.child, pass_columns(self.child.schema, names)), (set(names),)
        read = rest | {*self.keys} | {key.column for key in self.order}
        return replace(self, columns=some), (read.union(*(c.expression.columns for c in some)),)

    def describe(self) -> str:
        """New columns, keys, order and frame."""
        parts = [", ".join(f"{column.expression.text} as {column.name}" for column in self.columns)]
        parts += [f"by {', '.join(self.keys)}"] if self.keys else []
        parts += [f"in order of {', '.join(map(str, self.order))}"] if self.order else []
        parts += [self.frame.sql()] if self.frame is not None else []
        return f"window {'; '.join(parts)}"
