"""Groups of a dataset's rows, to be aggregated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, column_tree, is_column, value_tree
from millrace.datasets.dataset_base import building, dataset_with, relation_in, tables_in
from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.operators import named
from millrace.plan.builders.reshape.build_pivot import Pivot, aggregated, pivoted
from millrace.plan.builders.reshape.pivot_values import (
    found_values,
    given_value,
    literal_of,
    values_query,
)
from millrace.plan.builders.user_code.build_row_functions import Groups, map_groups, map_pairs
from millrace.plan.nodes.user_code.user_function import UserFunction
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.statement import rows_grouped
from millrace.sql.name_checks import named_texts
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import from_arrow

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset

_FUNCTION_NAME: Final = re.compile(r"\w+")
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal"})


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class GroupedData:
    """Groups of a dataset's rows with equal keys, to be aggregated.

    Example:
        >>> by_customer = orders.group_by("cust_id")
        >>> by_customer.agg(total="sum(amount)").columns
        ['cust_id', 'total']
    """

    _dataset: Dataset
    _keys: tuple[exp.Expression, ...]
    _shown: str
    _sets: tuple[tuple[exp.Expression, ...], ...] | None = None
    _pivot: Pivot | None = None
    _tables: Mapping[str, Relation] = field(default_factory=dict)
    """Those that subqueries in the keys name."""

    def __repr__(self) -> str:
        return f"GroupedData[{self._shown}]"

    def agg(
        self,
        aggregates: Mapping[str, ColumnOrName] | ColumnOrName | None = None,
        /,
        *columns: ColumnOrName,
        **more: ColumnOrName,
    ) -> Dataset:
        """One row per group: the keys, then the aggregates: `agg(total="sum(amount)")`.

        Columns are taken too, `agg(F.sum("amount"))`, and Spark's names of functions by column,
        `agg({"amount": "sum"})`.

        Example:
            >>> by_customer = orders.group_by("cust_id")
            >>> by_customer.agg({"total amount": "sum(amount)"}, largest="max(amount)").columns
            ['cust_id', 'total amount', 'largest']
            >>> by_customer.agg({"amount": "sum"}).columns
            ['cust_id', 'sum(amount)']
        """
        mapping = aggregates if isinstance(aggregates, Mapping) else None
        if aggregates is not None and not isinstance(aggregates, Mapping):
            columns = (aggregates, *columns)
        values, call = named_texts("agg", mapping, more)
        if not values and not columns and not self._keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        relation = relation_in(self._dataset)
        with building(self._dataset, call):
            items = [column_tree(column, relation) for column in columns]
            for name, value in values.items():
                if mapping is not None and name in mapping and _is_function(value, name, relation):
                    items.append(_call_of(str(value), name))
                else:
                    tree = value_tree(value, relation, f"write agg({name}=...)")
                    bare = tree.this if isinstance(tree, exp.Alias) else tree
                    items.append(named(bare, name))
        return self._aggregated(call, items)

    def count(self) -> Dataset:
        """The number of rows of each group, as the column `count`."""
        star = exp.Anonymous(this="count", expressions=[exp.Star()])
        return self._aggregated("count()", [named(star, "count")])

    def sum(self, *cols: str) -> Dataset:
        """The sums of these columns, or of all that have numbers."""
        return self._each("sum", cols)

    def avg(self, *cols: str) -> Dataset:
        """The averages of these columns, or of all that have numbers."""
        return self._each("avg", cols)

    def mean(self, *cols: str) -> Dataset:
        """`avg` under its other name."""
        return self._each("avg", cols)

    def min(self, *cols: str) -> Dataset:
        """The least values of these columns, or of all that have numbers."""
        return self._each("min", cols)

    def max(self, *cols: str) -> Dataset:
        """The greatest values of these columns, or of all that have numbers."""
        return self._each("max", cols)

    def _each(self, function: str, columns: Sequence[str]) -> Dataset:
        relation = relation_in(self._dataset)
        call = f"{function}({', '.join(map(repr, columns))})"
        keys = {folded(tree.name) for tree in self._keys if isinstance(tree, exp.Column)}
        chosen = list(columns) or [
            a.label
            for a, column in zip(relation.visible, relation.schema, strict=True)
            if from_arrow(column.type).name in _NUMBERS and folded(a.label) not in keys
        ]
        with building(self._dataset, call):
            items = [_call_on(function, column_tree(name, relation)) for name in chosen]
        return self._aggregated(call, items)

    def pivot(self, pivot_col: ColumnOrName, values: Sequence[Any] | None = None) -> GroupedData:
        """Groups whose aggregates have a column for each value of a column.

        Without `values`, a query looks for them now.
        """
        call = f"pivot({pivot_col!r})"
        if self._pivot is not None or self._sets is not None:
            raise UserError(f"{call} comes after groupBy, once\n  to fix: pivot one column")
        with building(self._dataset, call):
            tree = column_tree(pivot_col, relation_in(self._dataset))
        bare = tree.this if isinstance(tree, exp.Alias) else tree
        relation = relation_in(self._dataset)
        with building(self._dataset, call) as context:
            if values is None:
                query = dataset_with(self._dataset, values_query(context, relation, bare))
                found = found_values(query.to_arrow())
            else:
                found = tuple(
                    given_value(column_tree(v, relation) if is_column(v) else literal_of(v))
                    for v in values
                )
        return replace(self, _pivot=Pivot((bare,), found))

    def applyInPandas(self, func: Callable[..., Any], schema: Any) -> Dataset:  # noqa: ANN401 - Spark's
        """The rows that a function makes of each group, a DataFrame of pandas.

        Work is reused as long as the function's code is the same.

        Example:
            >>> def largest(frame):
            ...     return frame.nlargest(1, "amount")
            >>> top = orders.groupBy("cust_id").applyInPandas(largest, orders.schema)
            >>> sorted(top.to_arrow()["amount"].to_pylist())
            [20, 30]
        """
        return self._applied("applyInPandas", func, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: Any) -> Dataset:  # noqa: ANN401 - Spark's
        """The rows that a function makes of each group, an Arrow table."""
        return self._applied("applyInArrow", func, schema)

    def apply(self, udf: Any) -> Dataset:  # noqa: ANN401 - PySpark's
        """`applyInPandas` with a function that `pandas_udf` has made for groups."""
        return self.applyInPandas(udf.func, udf.returnType)

    def cogroup(self, other: GroupedData) -> CogroupedData:
        """Groups of two datasets with equal keys, for `applyInPandas` and `applyInArrow`."""
        return CogroupedData(self, other)

    def _applied(self, method: str, func: object, schema: object) -> Dataset:
        with building(self._dataset, f"{method}({_function_name(func)})") as context:
            function = rows_function(context, func, schema, method)
            plan = map_groups(context, groups_in(self), function)
            return dataset_with(self._dataset, relation_of(plan))

    @property
    def _is_plain(self) -> bool:
        """Whether the groups are of groupBy alone."""
        return self._sets is None and self._pivot is None

    def _aggregated(self, call: str, items: Sequence[exp.Expression]) -> Dataset:
        with building(self._dataset, call) as context:
            relation = relation_in(self._dataset)
            trees = [*self._keys, *items]
            if any(tree.find(exp.Query) for tree in trees) and self._is_plain:
                tables = {**self._tables, **tables_in(*items)}
                rows = rows_grouped(context, relation, self._keys, items, tables)
                return dataset_with(self._dataset, rows)
            if self._pivot is not None:
                rows = pivoted(context, relation, self._keys, self._pivot, items)
                return dataset_with(self._dataset, rows)
            return dataset_with(
                self._dataset, aggregated(context, relation, self._keys, items, self._sets)
            )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CogroupedData:
    """Groups of two datasets with equal keys."""

    _first: GroupedData
    _second: GroupedData

    def applyInPandas(self, func: Callable[..., Any], schema: Any) -> Dataset:  # noqa: ANN401 - Spark's
        """The rows that a function makes of each pair of groups, DataFrames of pandas."""
        return self._applied("applyInPandas", func, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: Any) -> Dataset:  # noqa: ANN401 - Spark's
        """The rows that a function makes of each pair of groups, Arrow tables."""
        return self._applied("applyInArrow", func, schema)

    def _applied(self, method: str, func: object, schema: object) -> Dataset:
        dataset = self._first._dataset
        with building(dataset, f"cogroup().{method}({_function_name(func)})") as context:
            function = rows_function(context, func, schema, f"cogroup.{method}")
            sides = groups_in(self._first), groups_in(self._second)
            return dataset_with(dataset, relation_of(map_pairs(context, *sides, function)))


def groups_in(grouped: GroupedData) -> Groups:
    """The rows and the keys of groups of groupBy."""
    if not grouped._is_plain:
        raise UserError("a function is for groups of groupBy alone\n  to fix: use agg")
    return relation_in(grouped._dataset), grouped._keys


def rows_function(context: BuildContext, func: object, schema: object, method: str) -> UserFunction:
    """The function of a method over groups."""
    if context.udfs is None:
        raise NotNative("functions need Spark", fix="use a workspace with Spark")
    return context.udfs.of_rows(func, schema, method)


def _function_name(func: object) -> str:
    return str(getattr(func, "__name__", type(func).__name__))


def _is_function(value: object, name: str, relation: Relation) -> bool:
    """Whether this is Spark's form: the name of a function, for a column by its name."""
    labels = {"*", *(folded(label) for label in relation.labels)}
    return (
        isinstance(value, str)
        and _FUNCTION_NAME.fullmatch(value) is not None
        and folded(name) in labels
    )


def _call_of(function: str, column: str) -> exp.Expression:
    """A function of Spark's by its name, over a column by its name; `*` is all rows."""
    argument = exp.Star() if column == "*" else exp.column(exp.to_identifier(column, quoted=True))
    return _call_on(function, argument)


def _call_on(function: str, argument: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=function, expressions=[argument])
