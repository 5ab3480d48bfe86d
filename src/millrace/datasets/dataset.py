"""Datasets: a query is described call by call, and runs when its rows are asked for.

Invariant: a call that is wrong fails at once, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, column_tree, flat
from millrace.datasets.dataset_base import shown_call, tables_in
from millrace.datasets.dataset_joins import DatasetJoins
from millrace.datasets.dataset_missing import DatasetMissing
from millrace.datasets.dataset_statistics import DatasetStatistics
from millrace.datasets.dataset_views import DatasetViews
from millrace.datasets.dataset_writer import DatasetWrites
from millrace.datasets.grouped_data import GroupedData
from millrace.datasets.html_tables import html_columns, html_rows
from millrace.datasets.table_arguments import TableArgument
from millrace.errors import UserError
from millrace.plan.builders.build_select import attribute_tree
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.reshape.grouping_sets import cube_sets, rollup_sets
from millrace.sql.name_checks import check_rows

if TYPE_CHECKING:
    from pyspark.sql import Observation, Row


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dataset(DatasetJoins, DatasetMissing, DatasetStatistics, DatasetWrites, DatasetViews):
    """A query: a source, and the operators over its rows. `ws.read_parquet` and others make one.

    Example:
        >>> joined = orders.join(customers, on="cust_id")
        >>> joined.group_by("nation").agg(total="sum(amount)").sort("nation").to_arrow().to_pylist()
        [{'nation': 'de', 'total': 20}, {'nation': 'fr', 'total': 40}]
    """

    def group_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> GroupedData:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key as any other value.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").sort("cust_id").to_arrow().to_pylist()
            [{'cust_id': 1, 'n': 2}, {'cust_id': 2, 'n': 1}]
        """
        trees = self._keys("group_by", cols)
        return GroupedData(self, trees, _shown(cols), _tables=tables_in(*trees))

    def groupBy(self, *cols: ColumnOrName | list[ColumnOrName]) -> GroupedData:
        """`group_by` under Spark's name."""
        return self.group_by(*cols)

    def groupby(self, *cols: ColumnOrName | list[ColumnOrName]) -> GroupedData:
        """`group_by` under Spark's other name."""
        return self.group_by(*cols)

    def rollup(self, *cols: ColumnOrName | list[ColumnOrName]) -> GroupedData:
        """Groups by all keys, by all but the last, and so on, and of all rows."""
        trees = self._keys("rollup", cols)
        return GroupedData(self, trees, _shown(cols), tuple(rollup_sets(trees)))

    def cube(self, *cols: ColumnOrName | list[ColumnOrName]) -> GroupedData:
        """Groups by every choice of keys."""
        trees = self._keys("cube", cols)
        return GroupedData(self, trees, _shown(cols), tuple(cube_sets(trees)))

    def groupingSets(
        self, groupingSets: Sequence[Sequence[ColumnOrName]], *cols: ColumnOrName
    ) -> GroupedData:
        """Groups by each of several sets of keys; the keys come in the result."""
        sets = tuple(self._keys("groupingSets", part) for part in groupingSets)
        return GroupedData(self, self._keys("groupingSets", cols), _shown(cols), sets)

    def _keys(self, method: str, keys: Sequence[object]) -> tuple[exp.Expression, ...]:
        given = flat(keys)
        with self._building(shown_call(method, given)):
            trees = tuple(self._key(key) for key in given)
            for tree in trees:
                resolve(tree, self._relation.attributes)
        return trees

    def _key(self, key: object) -> exp.Expression:
        """The tree of a key; a number is the column at that position, from 1."""
        if isinstance(key, int) and 0 < key <= len(self._relation.visible):
            return attribute_tree(self._relation.visible[key - 1])
        return column_tree(key, self._relation)

    def agg(
        self,
        aggregates: Mapping[str, ColumnOrName] | ColumnOrName | None = None,
        /,
        *columns: ColumnOrName,
        **more: ColumnOrName,
    ) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`.

        Example:
            >>> orders.agg({"total amount": "sum(amount)"}, n="count(*)").to_arrow().to_pylist()
            [{'total amount': 60, 'n': 3}]
        """
        return GroupedData(self, (), "").agg(aggregates, *columns, **more)

    def show(self, n: int = 20, truncate: bool | int = 20, vertical: bool = False) -> None:
        """Print the first rows as Spark's `show` does; `truncate=False` shows long values whole.

        Example:
            >>> customers.show()
            +-------+------+
            |cust_id|nation|
            +-------+------+
            |      1|    fr|
            |      2|    de|
            +-------+------+
        """
        check_rows(n, f"show({n!r})")
        rows = self.limit(n + 1).to_arrow()
        self._runner.show(rows, n, truncate=truncate, vertical=vertical)

    def count(self) -> int:
        """The number of rows.

        Example:
            >>> orders.count()
            3
        """
        return int(self.agg(n="count(*)")._value()[0])

    def head(self, n: int | None = None) -> Row | list[Row] | None:
        """The first row, or None; with a number the first rows."""
        if n is None:
            rows = self.take(1)
            return rows[0] if rows else None
        return self.take(n)

    def first(self) -> Row | None:
        """The first row, or None."""
        rows = self.take(1)
        return rows[0] if rows else None

    def take(self, num: int) -> list[Row]:
        """The first rows."""
        return self.limit(num).collect()

    def isEmpty(self) -> bool:
        """Whether there is no row."""
        return not self.limit(1).to_arrow().num_rows

    def asTable(self) -> TableArgument:
        """The rows as an argument of a table function, which `udtf` makes.

        Example:
            >>> argument = orders.asTable().partitionBy("cust_id").orderBy("amount")
        """
        return TableArgument(dataset=self)

    def observe(self, observation: Observation | str, *exprs: ColumnOrName) -> Self:
        """The same rows. Aggregates of them run now, and Spark's `Observation` gets their values.

        A name instead of an observation is for listeners of the Spark session.

        Example:
            >>> from pyspark.sql import Observation
            >>> seen = Observation("orders")
            >>> same = orders.observe(seen, F.count("*").alias("n"), F.max("amount").alias("most"))
            >>> seen.get
            {'n': 3, 'most': 30}
        """
        if not exprs:
            raise UserError("observe() has no metrics\n  to fix: give aggregates, as F.count('*')")
        self._runner.observe(observation, self.agg(*exprs).to_arrow())
        return self._with(self._relation)

    def checkpoint(self, eager: bool = True) -> Self:
        """`durable()`; the rows are saved now, or when a query needs them."""
        saved = self.durable()
        if eager:
            saved.run()
        return saved

    def localCheckpoint(self, eager: bool = True, storageLevel: object = None) -> Self:
        """`checkpoint()`: what is saved here outlives executors."""
        del storageLevel
        return self.checkpoint(eager)

    def _repr_html_(self) -> str:
        """The columns for a notebook; with Spark's eagerEval, the first rows as well."""
        count = self._runner.eager_rows()
        if not count:
            return html_columns(self.dtypes)
        rows = self.limit(count + 1).to_arrow()
        return html_rows(self.columns, rows, count)


def _shown(keys: Sequence[object]) -> str:
    return ", ".join(map(str, flat(keys)))
