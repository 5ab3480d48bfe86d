"""What the parts of a statement know of the statement around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.relation import Attribute, Relation, free_columns
from millrace.sql.typed_sql import ExpressionRefused

BuildQuery = Callable[["QueryScope", exp.Expression], Relation]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScope:
    """The tables of WITH by their names in lower case, and how a query inside becomes rows."""

    context: BuildContext
    build: BuildQuery
    tables: Mapping[str, Relation] = field(default_factory=dict)
    is_subquery: bool = False
    """Whether names may be those of a query around this one."""
    numbers: Iterator[int] = field(default_factory=count)

    def query(self, tree: exp.Expression) -> Relation:
        """The rows of a query inside FROM or WITH."""
        return self.build(self, tree).only_visible()

    def subquery(self, tree: exp.Expression) -> Relation:
        """The rows of a query inside an expression that names nothing of the query around it."""
        return self.build(replace(self, is_subquery=True), tree).only_visible()

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
