"""A function that a user made with PySpark, and a call of it over columns.

Its values are made where PySpark is known. A plan knows what the function gives, how its code is
recognised, and what calls it in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable

Batches = Iterator[pa.RecordBatch]
Shape = Literal["row", "batch", "stream", "group", "rows", "pairs"]
"""What it gets at a time: a row, a batch, all batches of a task, or columns of a group.

A function over "rows" or "pairs" of groups is no part of an expression: it makes rows of rows."""


@dataclass(frozen=True, slots=True)
class Side:
    """An input of a cogroup: the names of its columns, and their names in the common stream."""

    names: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupPairs:
    """How rows of a cogroup's common stream are told apart: 0 in `side` is the left input."""

    side: str
    left: Side
    right: Side

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the stream, without keys."""
        return (self.side, *self.left.columns, *self.right.columns)


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """The columns with the beginning and the end of each row's frame; none for whole partitions."""

    columns: tuple[str, ...] = ()


class TaskCaller(Protocol):
    """Prepares calls in a task."""

    def __call__(
        self,
        calls: Sequence[FunctionCall],
        schema: pa.Schema,
        zone: str,
        keys: Sequence[str] | None = None,
        over: GroupPairs | FrameBounds | None = None,
    ) -> Callable[[Batches], Batches]:
        """What makes batches of results of batches with these columns.

        With `keys`, rows come sorted by them, and each group is called by itself. Over pairs of
        groups they are sorted by their side after that, over frames by their place.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserFunction:
    """A user's function with its type, and how Spark's workers call it.

    `eval_type` and `result_json` are Spark's own.
    """

    name: str
    function: Callable[..., Any]
    command: bytes
    eval_type: int
    shape: Shape
    result: pa.DataType
    result_json: str
    deterministic: bool
    caller: TaskCaller

    def __deepcopy__(self, memo: object) -> UserFunction:
        return self

    def identity(self) -> str:
        """The identity of its code and type; raises `Unrecognisable` if there is none."""
        if not self.deterministic:
            raise Unrecognisable("it is not deterministic, as its user says")
        return f"{self.eval_type} {self.result_json} {function_identity(self.function)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionCall:
    """A call over columns of its input, and the name of the column that it gives."""

    column: str
    function: UserFunction
    arguments: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """The columns that it reads."""
        return frozenset([*self.arguments, *(column for _, column in self.keywords)])

    def identity(self) -> str:
        """The identity of the function and of the columns it gets."""
        return f"{self.function.identity()} over {self.arguments} {self.keywords}"

    def describe(self) -> str:
        """The call in SQL's form."""
        named = [f"{name} => {column}" for name, column in self.keywords]
        return f"{self.function.name}({', '.join([*self.arguments, *named])}) AS {self.column}"
