"""What the parts of a statement know of the statement around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.relation import Attribute, Relation, free_columns
from millrace.sql.typed_sql import ExpressionRefused


class StatementParts(Protocol):
    """Builds the parts of a statement; each may hold others."""

    def query(self, scope: QueryScope, tree: exp.Expression) -> Relation:
        """The rows of a query."""

    def source(self, scope: QueryScope, tree: exp.Select) -> tuple[Relation, list[exp.Expression]]:
        """The rows of FROM, and the conditions that are left for a filter."""

    def kept(
        self, scope: QueryScope, relation: Relation, conditions: Sequence[exp.Expression]
    ) -> Relation:
        """The rows for which all conditions are true."""

    def as_columns(
        self, scope: QueryScope, sides: Sequence[Relation], tree: exp.Expression
    ) -> tuple[list[Relation], exp.Expression]:
        """The sides of a join with columns for subqueries of its condition, and the condition."""

    def over(self, scope: QueryScope, relation: Relation, tree: exp.Select) -> Relation:
        """The clauses behind WHERE, over given rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScope:
    """The tables of WITH by their names in lower case, and how a query inside becomes rows."""

    context: BuildContext
    parts: StatementParts
    tables: Mapping[str, Relation] = field(default_factory=dict)
    is_subquery: bool = False
    """Whether names may be those of a query around this one."""
    numbers: Iterator[int] = field(default_factory=count)

    def query(self, tree: exp.Expression) -> Relation:
        """The rows of a query inside FROM or WITH."""
        return self.parts.query(self, tree).only_visible()

    def subquery(self, tree: exp.Expression) -> Relation:
        """The rows of a query inside an expression that names nothing of the query around it."""
        return self.parts.query(replace(self, is_subquery=True), tree).only_visible()

    def source(self, tree: exp.Select) -> tuple[Relation, list[exp.Expression]]:
        """The rows of a query's FROM, and the conditions that are left for a filter."""
        return self.parts.source(self, tree)

    def kept(self, relation: Relation, conditions: Sequence[exp.Expression]) -> Relation:
        """The rows for which all conditions are true."""
        return self.parts.kept(self, relation, conditions)

    def as_columns(
        self, sides: Sequence[Relation], tree: exp.Expression
    ) -> tuple[list[Relation], exp.Expression]:
        """The sides of a join with columns for subqueries of its condition, and the condition."""
        return self.parts.as_columns(self, sides, tree)

    def over(self, relation: Relation, tree: exp.Select) -> Relation:
        """The clauses of a query behind WHERE, over given rows."""
        return self.parts.over(self, relation, tree)

    def with_table(self, name: str, relation: Relation) -> QueryScope:
        """The scope with one more table of WITH."""
        return replace(self, tables={**self.tables, name.lower(): relation})

    def number(self) -> int:
        """A number that nothing else in the statement has."""
        return next(self.numbers)


def aliased(relation: Relation, alias: exp.Expression | None) -> Relation:
    """A relation under the alias of its table, and its columns under theirs, if there are any."""
    if alias is None:
        return relation
    columns = [name.name for name in alias.args.get("columns") or ()]
    named = relation.with_alias(alias.name) if alias.name else relation.only_visible()
    if not columns:
        return named
    if len(columns) != len(named.attributes):
        raise ExpressionRefused(
            f"the alias {alias.name} names another number of columns",
            found=f"{len(columns)} names for {len(named.attributes)} columns",
            fix="name every column once",
        )
    pairs = zip(named.attributes, columns, strict=True)
    return replace(named, attributes=tuple(replace(a, label=label) for a, label in pairs))


def with_own_columns(relation: Relation, used: Sequence[str], prefix: str = "") -> Relation:
    """The relation over a plan with no column name of `used`; all get the prefix, if there is one.

    Columns without an attribute are left out.
    """
    columns = list(dict.fromkeys(attribute.column for attribute in relation.attributes))
    wanted = [prefix + column for column in columns]
    names = dict(zip(columns, free_columns(wanted, used), strict=True))
    if all(old == new for old, new in names.items()):
        return relation
    passed = pass_columns(relation.node.schema, columns)
    node = Project(relation.node, tuple((names[column], e) for column, e in passed))
    attributes = tuple(replace(a, column=names[a.column]) for a in relation.attributes)
    return Relation(node, attributes)


def hidden(name: str) -> Attribute:
    """The attribute of a column that no user can name."""
    return Attribute(name, name, hidden=True)


def columns_in(tree: exp.Expression) -> set[str]:
    """The names of the columns in a tree, those in subqueries left out."""
    if isinstance(tree, exp.Query):
        return set()
    if isinstance(tree, exp.Column):
        return {tree.name}
    return {name for part in tree.iter_expressions() for name in columns_in(part)}
