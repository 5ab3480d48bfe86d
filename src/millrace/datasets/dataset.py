"""Datasets: a query is described call by call, and runs when its rows are asked for.

Invariant: a call that is wrong fails at once, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.datasets.column_arguments import value_tree
from millrace.datasets.dataset_base import shown_call
from millrace.datasets.dataset_joins import DatasetJoins
from millrace.datasets.dataset_results import DatasetResults
from millrace.datasets.grouped_data import GroupedData
from millrace.plan.builders.name_resolution import resolve
from millrace.sql.name_checks import check_rows


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dataset(DatasetJoins, DatasetResults):
    """A query: a source, and the operators over its rows. `ws.read_parquet` and others make one.

    Example:
        >>> joined = orders.join(customers, on="cust_id")
        >>> joined.group_by("nation").agg(total="sum(amount)").sort("nation").to_arrow().to_pylist()
        [{'nation': 'de', 'total': 20}, {'nation': 'fr', 'total': 40}]
    """

    def group_by(self, *keys: str) -> GroupedData:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key as any other value.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").sort("cust_id").to_arrow().to_pylist()
            [{'cust_id': 1, 'n': 2}, {'cust_id': 2, 'n': 1}]
        """
        call = shown_call("group_by", keys)
        with self._building(call):
            trees = tuple(value_tree(key, self._relation) for key in keys)
            for tree in trees:
                resolve(tree, self._relation.attributes)
        return GroupedData(self, trees, ", ".join(map(str, keys)))

    def agg(self, aggregates: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`.

        Example:
            >>> orders.agg({"total amount": "sum(amount)"}, n="count(*)").to_arrow().to_pylist()
            [{'total amount': 60, 'n': 3}]
        """
        return GroupedData(self, (), "").agg(aggregates, **more)

    def show(self, n: int = 20, truncate: int = 20) -> None:
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
        self._runner.show(self.limit(n + 1).to_arrow(), n, truncate)

    def count(self) -> int:
        """The number of rows.

        Example:
            >>> orders.count()
            3
        """
        return int(self.agg(n="count(*)").to_arrow()["n"][0].as_py())
