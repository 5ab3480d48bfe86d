"""What a dataset is made of, from its sources to its result. Values only.

A new operator is a class here, or in a module of its own beside this one, and how it is written as
SQL in `operators/`. Invariant: a node knows its schema without anything being run, and two nodes
that are equal mean the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from millrace.plan.nodes.placement import (
    InPlace,
    Placement,
    ToOne,
    partitions_of,
    renamed,
)
from millrace.sql.expressions import Expression
from millrace.sql.terms import quoted
from millrace.sql.types import from_arrow, to_arrow
from millrace.text import counted

if TYPE_CHECKING:
    from millrace.scan.source import FileSource


class Node(ABC):
    """An operator with its inputs. What the planner asks is answered here, for all operators."""

    __slots__ = ()

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of its rows."""

    @property
    @abstractmethod
    def children(self) -> tuple[Node, ...]:
        """The nodes whose rows it works on, left to right."""

    @abstractmethod
    def with_children(self, *children: Node) -> Node:
        """The same operator over other inputs."""

    @abstractmethod
    def describe(self) -> str:
        """The operator in a line."""

    @abstractmethod
    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Itself without columns nobody wants, and the columns it then reads of each child."""

    @property
    def lies(self) -> Placement | None:
        """How its rows lie over tasks; None if in no order that can be used."""
        return None

    @property
    def num_partitions(self) -> int | None:
        """In how many partitions its rows come; None if that is known only at run time."""
        return partitions_of(self.lies)

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """For each child, how it names these columns if a filter on them can be done there instead.

        None for a child that is not to be filtered; if for all, the filter has to stay above.
        """
        del columns
        return tuple(None for _ in self.children)

    def requires_shuffle(self) -> bool:
        """Whether it looks at rows of more than one task."""
        return False

    def whole_sides(self) -> tuple[bool, ...]:
        """For each child, whether every task may read all of it beside a part of the others."""
        return tuple(False for _ in self.children)

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """For each child the columns whose equal rows must meet in a task; () for all rows."""
        return tuple(() for _ in self.children)


class OverOne(Node):
    """An operator over one child."""

    __slots__ = ()
    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """The one child."""
        return (self.child,)

    def with_children(self, *children: Node) -> Self:
        """The same operator over another child."""
        (child,) = children
        return replace(self, child=child)  # type: ignore[type-var]

    @property
    def schema(self) -> pa.Schema:
        """The child's columns."""
        return self.child.schema

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """All that is wanted of it."""
        return self, (wanted,)


class Leaf(Node):
    """A node where rows come from."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Node, ...]:
        """None."""
        return ()

    def with_children(self, *children: Node) -> Self:
        """Itself."""
        assert not children
        return self

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Itself, read whole."""
        del wanted
        return self, ()


@dataclass(frozen=True, slots=True, eq=False)
class Scan(Leaf):
    """Rows of files."""

    source: FileSource
    columns: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns that are read."""
        return pa.schema([self.source.schema.field(name) for name in self.columns])

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Only the columns that are wanted; at least one, so that rows can be counted."""
        kept = tuple(name for name in self.columns if name in wanted)
        return replace(self, columns=kept or self.columns[:1]), ()

    def describe(self) -> str:
        """Format, files and columns."""
        files = counted(len(self.source.shapes), "file")
        return f"scan {self.source.format}, {files}, columns {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, eq=False)
class Project(OverOne):
    """New columns, each calculated from those of the child."""

    child: Node
    columns: tuple[tuple[str, Expression], ...]

    @property
    def schema(self) -> pa.Schema:
        """The new columns."""
        return pa.schema([(name, to_arrow(e.type)) for name, e in self.columns])

    @property
    def passed_on(self) -> dict[str, str]:
        """Columns of the child that are passed on as they are, with their new names."""
        bare = [(e.columns, name) for name, e in reversed(self.columns) if e.is_column]
        return {source: name for (source,), name in bare}

    @property
    def lies(self) -> Placement | None:
        """As the child, under the new names."""
        return renamed(self.child.lies, self.passed_on)

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on columns that are passed on."""
        bare = {name: e.columns for name, e in self.columns if e.is_column}
        if not columns <= bare.keys():
            return (None,)
        return ({name: next(iter(bare[name])) for name in columns},)

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What the wanted columns are calculated from."""
        some = tuple((name, e) for name, e in self.columns if name in wanted) or self.columns[:1]
        return Project(self.child, some), ({name for _, e in some for name in e.columns},)

    def describe(self) -> str:
        """The columns and how they are calculated."""
        return "project " + ", ".join(
            name if e.text == name else f"{e.text} as {name}" for name, e in self.columns
        )


@dataclass(frozen=True, slots=True, eq=False)
class Filter(OverOne):
    """Rows of the child for which the condition is true."""

    child: Node
    condition: Expression

    @property
    def lies(self) -> Placement | None:
        """As the child."""
        return self.child.lies

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What is wanted and what the condition is about."""
        return self, (wanted | self.condition.columns,)

    def describe(self) -> str:
        """The condition."""
        return f"filter {self.condition.text}"


@dataclass(frozen=True, slots=True, eq=False)
class Limit(OverOne):
    """The first rows of the child."""

    child: Node
    rows: int

    @property
    def lies(self) -> Placement | None:
        """As the child."""
        return self.child.lies

    def requires_shuffle(self) -> bool:
        """The first rows are found among all rows."""
        return True

    def describe(self) -> str:
        """How many."""
        return f"limit {self.rows}"


@dataclass(frozen=True, slots=True, eq=False)
class Union(Node):
    """All rows of all children, one after the other. All have these columns, of equal types."""

    inputs: tuple[Node, ...]
    columns: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns, as the first child has them."""
        first = self.inputs[0].schema
        return pa.schema([first.field(name) for name in self.columns])

    @property
    def children(self) -> tuple[Node, ...]:
        """The inputs."""
        return self.inputs

    def with_children(self, *children: Node) -> Node:
        """A union of others."""
        return replace(self, inputs=children)

    @property
    def lies(self) -> Placement | None:
        """As all of them do, if that is the same."""
        first = self.inputs[0].lies
        alike = all(one.lies == first for one in self.inputs[1:])
        return renamed(first, {name: name for name in self.columns}) if alike else None

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Any filter, on every side."""
        return tuple({name: name for name in columns} for _ in self.inputs)

    @property
    def branches(self) -> tuple[Node, ...]:
        """Its sides, each with just the columns of the union."""
        return tuple(Project(one, passed_on(one.schema, self.columns)) for one in self.inputs)

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What is wanted, of each."""
        kept = tuple(name for name in self.columns if name in wanted) or self.columns[:1]
        return replace(self, columns=kept), tuple(set(kept) for _ in self.inputs)

    def describe(self) -> str:
        """How many."""
        return f"union of {len(self.inputs)}"


@dataclass(frozen=True, slots=True, eq=False)
class Repartition(OverOne):
    """Rows placed as the user asks; becomes an exchange."""

    child: Node
    placement: Placement

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Any filter, unless the rows are to be kept as they are."""
        return (None if isinstance(self.placement, InPlace) else {name: name for name in columns},)

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What is wanted and what rows are placed by; all columns of what others will read too."""
        if isinstance(self.placement, InPlace):
            return self, (set(self.schema.names),)
        return self, (wanted | set(getattr(self.placement, "keys", ())),)

    def describe(self) -> str:
        """The placement."""
        if isinstance(self.placement, InPlace):
            return "durable"
        return f"repartition {self.placement}"


@dataclass(frozen=True, slots=True, eq=False)
class Exchange(OverOne):
    """Where rows change tasks, and why."""

    child: Node
    placement: Placement
    why: str

    @property
    def lies(self) -> Placement | None:
        """As they were put."""
        broadcast = isinstance(self.placement, ToOne) and self.placement.broadcast
        return None if broadcast else self.placement

    def describe(self) -> str:
        """The placement and the reason."""
        return f"exchange {self.placement}: {self.why}"


@dataclass(frozen=True, slots=True, eq=False)
class ReadStage(Leaf):
    """What an earlier stage wrote: this task's partition of it or, from a broadcast, all of it."""

    stage: int
    columns: pa.Schema
    placement: Placement

    @property
    def schema(self) -> pa.Schema:
        """The stage's columns."""
        return self.columns

    @property
    def broadcast(self) -> bool:
        """Whether every task reads all of it."""
        return isinstance(self.placement, ToOne) and self.placement.broadcast

    @property
    def lies(self) -> Placement | None:
        """As the stage wrote them."""
        return None if self.broadcast else self.placement

    def describe(self) -> str:
        """The stage."""
        return f"read {'all of ' if self.broadcast else ''}stage {self.stage}"


def passed_on(schema: pa.Schema, names: Sequence[str]) -> tuple[tuple[str, Expression], ...]:
    """Columns of a schema as they are, for a `Project`."""
    return tuple(
        (
            name,
            Expression(quoted(name), from_arrow(schema.field(name).type), frozenset([name]), name),
        )
        for name in names
    )


def only(node: Node, names: Sequence[str]) -> Node:
    """These columns of a node alone."""
    return (
        node if node.schema.names == list(names) else Project(node, passed_on(node.schema, names))
    )


def leaves(node: Node) -> list[Scan | ReadStage]:
    """The scans and stage reads below a node, left to right."""
    if isinstance(node, Scan | ReadStage):
        return [node]
    return [leaf for child in node.children for leaf in leaves(child)]


def with_new_children(node: Node, children: Sequence[Node]) -> Node:
    """The same operator, as it is if its children are the same ones."""
    same = all(one is two for one, two in zip(node.children, children, strict=True))
    return node if same else node.with_children(*children)
