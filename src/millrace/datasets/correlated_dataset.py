"""Datasets that name columns of a dataset around them, for `exists()`, `scalar()`, `lateralJoin`.

What such a dataset holds is known only where it is used, so its calls are kept as a query.
Invariant: a call that is not kept here raises the error of the first name that was not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, NoReturn, Self

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, flat, object_tree, order_tree
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import (
    DatasetBase,
    PlanRunner,
    next_number,
    relation_in,
    shown_call,
    table_tree,
)
from millrace.errors import UserError
from millrace.plan.builders.operators import all_of, named
from millrace.plan.relation import Relation
from millrace.sql.parser import read
from millrace.sql.sql_mode import SqlMode

_numbers: Final = count(1)
_WHERE, _ITEMS, _DISTINCT, _ORDER, _LIMIT = range(5)
"""The clauses of a query in the order in which they apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuery:
    """A query that names columns of another around it.

    `datasets` are those that it reads, which live as long as it does. `last` is the last of its
    clauses, `reason` the error of a name that its own tables have not.
    """

    tree: exp.Select
    datasets: tuple[DatasetBase, ...]
    reason: UserError
    last: int = _WHERE
    alias: str | None = None

    def with_clause(self, clause: int, **parts: object) -> OpenQuery:
        """The query with one more clause, over its rows as they are so far."""
        follows = clause > self.last or clause == self.last == _WHERE
        inner = self if follows and self.alias is None else self._nested()
        tree = inner.tree.copy()
        for name, part in parts.items():
            tree.set(name, part)
        return replace(inner, tree=tree, last=clause)

    def where(self, condition: exp.Expression) -> OpenQuery:
        """The rows for which a condition is true."""
        is_one_clause = self.last == _WHERE and self.alias is None
        before = self.tree.args.get("where") if is_one_clause else None
        parts = [condition] if before is None else [before.this, condition]
        return self.with_clause(_WHERE, where=exp.Where(this=all_of(parts)))

    def _nested(self) -> OpenQuery:
        alias = self.alias or f"__query_{next(_numbers)}"
        table = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
        source = exp.From(this=exp.Subquery(this=self.tree, alias=table))
        return replace(
            self, tree=exp.Select(expressions=[exp.Star()], from_=source), last=_WHERE, alias=None
        )


class CorrelatedDataset(Dataset):
    """A dataset that names columns of a dataset around it."""

    __slots__ = ("_open",)
    _open: OpenQuery

    def __init__(self, query: OpenQuery, runner: PlanRunner, number: int) -> None:
        for name, value in (("_open", query), ("_runner", runner), ("_number", number)):
            object.__setattr__(self, name, value)

    @property
    def _relation(self) -> Relation:
        self._refuse()

    def _refuse(self) -> NoReturn:
        first, *rest = str(self._open.reason).splitlines()
        kept = [line for line in rest if not line.startswith("  to fix")]
        fix = (
            "  to fix: name a column that is there, or use it in exists(), scalar() or lateralJoin"
        )
        raise UserError("\n".join([first, *kept, fix]))

    def __repr__(self) -> str:
        return f"Dataset[{self._open.tree.sql('spark')}]"

    def _as_query(self) -> exp.Select:
        return self._open.tree.copy()

    def _as_lateral(self) -> exp.Lateral:
        lateral = exp.Lateral(this=exp.Subquery(this=self._as_query()))
        if self._open.alias is not None:
            name = exp.to_identifier(self._open.alias, quoted=True)
            lateral.set("alias", exp.TableAlias(this=name))
        return lateral

    def _kept(self, query: OpenQuery) -> Self:
        return type(self)(query, self._runner, next_number())

    def _tree(self, given: object) -> exp.Expression:
        with self._building(shown_call("select", [given])):
            return read(given) if isinstance(given, str) else object_tree(given)

    @property
    def _blind(self) -> Relation:
        """Rows of which no name is known yet."""
        return Relation(relation_in(self._open.datasets[0]).node, ())

    @property
    def _mode(self) -> SqlMode:
        return self._open.datasets[0]._mode if self._open.datasets else self._runner.mode

    def filter(self, condition: ColumnOrName) -> Self:
        """Rows for which the condition is true."""
        return self._kept(self._open.where(self._tree(condition)))

    def select(self, *cols: ColumnOrName | list[ColumnOrName]) -> Self:
        """Columns, calculated ones too."""
        items = [self._tree(column) for column in flat(cols)]
        return self._kept(self._open.with_clause(_ITEMS, expressions=items))

    def selectExpr(self, *expr: str | list[str]) -> Self:
        """Columns of Spark SQL."""
        return self.select(*(text for text in flat(expr) if isinstance(text, str)))

    def distinct(self) -> Self:
        """Each row once."""
        return self._kept(self._open.with_clause(_DISTINCT, distinct=exp.Distinct()))

    def sort(
        self,
        *cols: ColumnOrName | int | list[ColumnOrName | int],
        ascending: bool | int | Sequence[bool | int] | None = None,
    ) -> Self:
        """All rows in order."""
        given = flat(cols)
        ways = list(ascending) if isinstance(ascending, Sequence) else [ascending] * len(given)
        with self._building(shown_call("sort", cols)):
            orders = [
                order_tree(column, self._blind, None if way is None else bool(way))
                for column, way in zip(given, ways, strict=True)
            ]
        listed = [o if isinstance(o, exp.Ordered) else exp.Ordered(this=o) for o in orders]
        return self._kept(self._open.with_clause(_ORDER, order=exp.Order(expressions=listed)))

    def limit(self, num: int) -> Self:
        """At most this many rows."""
        limit = exp.Limit(expression=exp.Literal.number(num))
        return self._kept(self._open.with_clause(_LIMIT, limit=limit))

    def offset(self, num: int) -> Self:
        """All rows but the first ones."""
        offset = exp.Offset(expression=exp.Literal.number(num))
        return self._kept(self._open.with_clause(_LIMIT, offset=offset))

    def alias(self, alias: str) -> Self:
        """The same, whose columns can be named through this alias."""
        return self._kept(replace(self._open, alias=alias))

    def agg(
        self,
        aggregates: Mapping[str, ColumnOrName] | ColumnOrName | None = None,
        /,
        *columns: ColumnOrName,
        **more: ColumnOrName,
    ) -> Dataset:
        """One row for all rows."""
        return CorrelatedGroups(self, ()).agg(aggregates, *columns, **more)

    def group_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> Any:  # noqa: ANN401 - see its class
        """Groups of rows with equal keys, for `.agg(...)`."""
        return CorrelatedGroups(self, tuple(self._tree(column) for column in flat(cols)))

    def _grouped(self, keys: Sequence[exp.Expression], items: Sequence[exp.Expression]) -> Self:
        group = exp.Group(expressions=[bare(key) for key in keys]) if keys else None
        listed = [*(key.copy() for key in keys), *items]
        return self._kept(self._open.with_clause(_ITEMS, expressions=listed, group=group))


@dataclass(frozen=True, slots=True)
class CorrelatedGroups:
    """Groups of a dataset that names columns of a dataset around it."""

    dataset: CorrelatedDataset
    keys: tuple[exp.Expression, ...]

    def agg(
        self,
        aggregates: Mapping[str, ColumnOrName] | ColumnOrName | None = None,
        /,
        *columns: ColumnOrName,
        **more: ColumnOrName,
    ) -> Dataset:
        """Aggregates of each group."""
        if isinstance(aggregates, Mapping):
            raise UserError(
                "agg() of a dataset that names outer columns takes columns\n"
                f"  found: {dict(aggregates)!r}\n  to fix: write F.sum('a').alias('total')"
            )
        given = columns if aggregates is None else (aggregates, *columns)
        items = [self.dataset._tree(column) for column in given]
        items += [named(self.dataset._tree(column), name) for name, column in more.items()]
        return self.dataset._grouped(self.keys, items)

    def count(self) -> Dataset:
        """How many rows each group has, as `count`."""
        return self.agg(count="count(1)")


def bare(tree: exp.Expression) -> exp.Expression:
    """A tree without its alias."""
    return (tree.this if isinstance(tree, exp.Alias) else tree).copy()


def correlated(dataset: Dataset, reason: UserError) -> CorrelatedDataset:
    """A dataset, as one whose next call names columns of another around it."""
    tree = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table_tree(dataset)))
    query = OpenQuery(tree=tree, datasets=(dataset,), reason=reason)
    return CorrelatedDataset(query, dataset._runner, next_number())


def correlated_call(runner: PlanRunner, call: exp.Anonymous, reason: UserError) -> Dataset:
    """The rows of a table function whose arguments are columns of a dataset around it."""
    source = exp.From(this=exp.Table(this=call))
    tree = exp.Select(expressions=[exp.Star()], from_=source)
    query = OpenQuery(tree=tree, datasets=(), reason=reason)
    return CorrelatedDataset(query, runner, next_number())
