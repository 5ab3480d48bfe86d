"""Groups of a dataset's rows, to be aggregated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, column_tree, value_tree
from millrace.datasets.dataset_base import building, dataset_with, relation_in
from millrace.errors import UserError
from millrace.plan.builders.build_aggregate import GroupedRows
from millrace.plan.builders.build_select import select
from millrace.plan.builders.operators import named
from millrace.plan.relation import Relation
from millrace.sql.name_checks import named_texts
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

    def sum(self, *columns: str) -> Dataset:
        """The sums of these columns, or of all that have numbers."""
        return self._each("sum", columns)

    def avg(self, *columns: str) -> Dataset:
        """The averages of these columns, or of all that have numbers."""
        return self._each("avg", columns)

    def mean(self, *columns: str) -> Dataset:
        """`avg` under its other name."""
        return self._each("avg", columns)

    def min(self, *columns: str) -> Dataset:
        """The least values of these columns, or of all that have numbers."""
        return self._each("min", columns)

    def max(self, *columns: str) -> Dataset:
        """The greatest values of these columns, or of all that have numbers."""
        return self._each("max", columns)

    def _each(self, function: str, columns: Sequence[str]) -> Dataset:
        relation = relation_in(self._dataset)
        call = f"{function}({', '.join(map(repr, columns))})"
        keys = {tree.name.lower() for tree in self._keys if isinstance(tree, exp.Column)}
        chosen = list(columns) or [
            a.label
            for a, field in zip(relation.visible, relation.schema, strict=True)
            if from_arrow(field.type).name in _NUMBERS and a.label.lower() not in keys
        ]
        with building(self._dataset, call):
            items = [_call_on(function, column_tree(name, relation)) for name in chosen]
        return self._aggregated(call, items)

    def _aggregated(self, call: str, items: Sequence[exp.Expression]) -> Dataset:
        with building(self._dataset, call) as context:
            grouped = GroupedRows(context, relation_in(self._dataset), self._keys)
            rewritten = [grouped.rewrite_item(item) for item in items]
            keys = [grouped.rewrite_item(key) for key in self._keys]
            rows = grouped.relation()
            return dataset_with(self._dataset, select(context, rows, [*keys, *rewritten]))


def _is_function(value: object, name: str, relation: Relation) -> bool:
    """Whether this is Spark's form: the name of a function, for a column by its name."""
    labels = {"*", *(label.lower() for label in relation.labels)}
    return (
        isinstance(value, str)
        and _FUNCTION_NAME.fullmatch(value) is not None
        and name.lower() in labels
    )


def _call_of(function: str, column: str) -> exp.Expression:
    """A function of Spark's by its name, over a column by its name; `*` is all rows."""
    argument = exp.Star() if column == "*" else exp.column(exp.to_identifier(column, quoted=True))
    return _call_on(function, argument)


def _call_on(function: str, argument: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=function, expressions=[argument])
