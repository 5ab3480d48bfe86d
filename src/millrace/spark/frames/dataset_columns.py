"""Columns of Spark Connect that take datasets where Spark's own take DataFrames.

They are Spark's own but for two methods: `isin(dataset)`, and `outer()`, which marks a name as one
that may be of a query around the dataset. Invariant: what is made of such a column is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from pyspark.sql.connect.column import Column as ConnectColumn
from pyspark.sql.connect.expressions import ColumnReference, UnresolvedFunction

from millrace.datasets.dataset_base import DatasetBase, numbered
from millrace.spark.versions.spark_versions import IN_DATASETS, has, lacks
from millrace.sql.connect_expressions import OUTER

_OWN: Final = frozenset(
    {
        *("isin", "outer", "to_plan", "__module__", "__doc__", "__hash__", "__repr__"),
        *("__new__", "__init__", "__getnewargs__", "__iter__", "__nonzero__", "__bool__"),
    }
)
"""What is not made anew of Spark's: it is written here, or makes no column."""


class DatasetColumn(ConnectColumn):
    """A column that takes datasets."""

    def isin(self, *cols: Any) -> Any:  # noqa: ANN401 - values, or one dataset
        """Whether the value is one of these, or of the rows of a dataset."""
        if len(cols) != 1 or not isinstance(cols[0], DatasetBase):
            return dataset_column_of(super().isin(*cols))
        if not has(IN_DATASETS):
            raise lacks("isin(dataset)", IN_DATASETS, 'SQL text: "k IN (SELECT ...)"')
        from pyspark.sql.connect.expressions import SubqueryExpression  # noqa: PLC0415 - of Spark 4.0

        expression = self._expr
        is_struct = isinstance(expression, UnresolvedFunction) and expression._name == "struct"  # noqa: SLF001 - as Spark's own
        values = list(expression.children) if is_struct else [expression]
        plan: Any = DatasetAsPlan(-numbered(cols[0]), cols[0])
        return DatasetColumn(SubqueryExpression(plan, "in", in_subquery_values=values))

    def outer(self) -> Any:  # noqa: ANN401 - a column
        """The same, of the query around the dataset if the dataset has no such column."""
        if not isinstance(self._expr, ColumnReference):
            return dataset_column_of(super().outer())
        return DatasetColumn(_OuterReference(self._expr))


@dataclass(frozen=True, slots=True)
class DatasetAsPlan:
    """What a column keeps of a dataset: the number that finds it, and the dataset itself."""

    _plan_id: int
    dataset: object


class _OuterReference(ColumnReference):
    """A name with the mark of `outer()`, which Spark has no place for: Spark gets the name."""

    def __init__(self, name: ColumnReference) -> None:
        super().__init__(name.name())
        vars(self).update(vars(name))

    def to_plan(self, session: Any) -> Any:  # noqa: ANN401 - a client and a message of Spark's
        """The message of the name; with the mark where no session is to read it."""
        message = super().to_plan(session)
        if session is not None:
            return message
        marked = self._create_proto_expression()
        marked.unresolved_function.function_name = OUTER
        marked.unresolved_function.arguments.append(message)
        return marked


def dataset_column_of(column: Any) -> Any:  # noqa: ANN401 - other values stay
    """A column of Spark Connect as one that takes datasets."""
    return DatasetColumn(column._expr) if type(column) is ConnectColumn else column  # noqa: SLF001 - its only part


def making_dataset_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose columns take datasets."""

    @wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function's
        return dataset_column_of(function(*args, **kwargs))

    return made


for _name, _method in vars(ConnectColumn).items():
    if callable(_method) and _name not in _OWN:
        setattr(DatasetColumn, _name, making_dataset_columns(_method))
DatasetColumn.__hash__ = ConnectColumn.__hash__  # type: ignore[method-assign] # Lost with __eq__.
