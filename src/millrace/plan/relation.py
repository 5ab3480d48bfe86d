"""Relations: a plan with the names under which users see its columns.

A plan's columns have names of their own, each once. Users see labels, which can come twice, and
can name a column through an alias of its table or through the dataset it came from.
Invariant: an attribute's `column` is a column of the plan. Hidden attributes are no part of the
result, but can still be named, as Spark allows it for sorts, filters and keys of joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.sql.name_checks import distinct_names
from millrace.sql.sql_mode import folded


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as users name it.

    `qualifier` is the name of its table, by parts: ("o",), or ("catalog", "db", "orders").
    `origins` are the numbers of the datasets that it was a column of. `metadata` is JSON that the
    user gave it; a column that is passed on keeps it.
    """

    label: str
    column: str
    qualifier: tuple[str, ...] = ()
    origins: frozenset[int] = frozenset()
    hidden: bool = False
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A plan and the attributes of its columns."""

    node: Node
    attributes: tuple[Attribute, ...]

    @property
    def visible(self) -> tuple[Attribute, ...]:
        """The attributes of the result, in order."""
        return tuple(a for a in self.attributes if not a.hidden)

    @property
    def labels(self) -> list[str]:
        """The names of the result's columns."""
        return [attribute.label for attribute in self.visible]

    @property
    def schema(self) -> pa.Schema:
        """The result's columns under their labels."""
        below = self.node.schema
        return pa.schema([pa.field(a.label, below.field(a.column).type) for a in self.visible])

    @property
    def has_unique_labels(self) -> bool:
        """Whether every label comes once, in any case."""
        return len({folded(label) for label in self.labels}) == len(self.labels)

    def output(self) -> Node:
        """A plan of just the visible columns, under their labels where each comes once."""
        columns = [attribute.column for attribute in self.visible]
        names = self.labels if self.has_unique_labels else free_columns(columns)
        return picked_columns(self.node, list(zip(names, columns, strict=True)))

    def with_alias(self, alias: str) -> Relation:
        """The visible columns under another name of their table."""
        return replace(self, attributes=tuple(replace(a, qualifier=(alias,)) for a in self.visible))

    def with_origin(self, number: int) -> Relation:
        """The same; its visible columns can now be named through this dataset."""
        attributes = tuple(
            a if a.hidden else replace(a, origins=a.origins | {number}) for a in self.attributes
        )
        return replace(self, attributes=attributes)

    def trimmed(self) -> Relation:
        """The same over a plan that has just the visible columns, each once."""
        columns = [attribute.column for attribute in self.visible]
        names = free_columns(columns)
        attributes = (replace(a, column=n) for a, n in zip(self.visible, names, strict=True))
        node = picked_columns(self.node, list(zip(names, columns, strict=True)))
        return Relation(node, tuple(attributes))

    def only_visible(self) -> Relation:
        """The same without hidden attributes."""
        return replace(self, attributes=self.visible)

    def over(self, node: Node) -> Relation:
        """The same attributes over another plan with the same columns."""
        return replace(self, node=node)


def relation_of(node: Node, qualifier: tuple[str, ...] = ()) -> Relation:
    """A plan whose columns are seen under their own names."""
    return Relation(node, tuple(Attribute(name, name, qualifier) for name in node.schema.names))


def free_columns(labels: Sequence[str], used: Iterable[str] = ()) -> list[str]:
    """A column name for each label: the label itself where it is free."""
    return distinct_names([label or "_" for label in labels], used, "_")


def picked_columns(node: Node, columns: Sequence[tuple[str, str]]) -> Node:
    """Columns of a plan under other names: pairs of the new name and the old one.

    An operator that names its columns itself gets the new names.
    """
    sources = [source for _, source in columns]
    if sources == node.schema.names == [name for name, _ in columns]:
        return node
    match node:
        case Project(child=child, columns=below):
            expressions = dict(below)
            composed = tuple((name, expressions[source]) for name, source in columns)
            if isinstance(child, Aggregate) and all(e.is_column for _, e in composed):
                return picked_columns(child, [(n, next(iter(e.columns))) for n, e in composed])
            return Project(child, composed)
        case Join(columns=below):
            by_name = {column.name: column for column in below}
            return replace(
                node, columns=tuple(replace(by_name[source], name=n) for n, source in columns)
            )
        case Aggregate(keys=keys, aggregates=aggregates) if columns[: len(keys)] == [
            (key, key) for key in keys
        ] and sorted(sources[len(keys) :]) == sorted(a.name for a in aggregates):
            calls = {aggregate.name: aggregate for aggregate in aggregates}
            renamed = (replace(calls[source], name=n) for n, source in columns[len(keys) :])
            return replace(node, aggregates=tuple(renamed))
        case _:
            passed = pass_columns(node.schema, sources)
            named = zip(columns, passed, strict=True)
            return Project(node, tuple((name, column) for (name, _), (_, column) in named))
