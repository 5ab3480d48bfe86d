"""The calls of a dataset that take rows of two datasets as sets: unions, intersections, rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, column_trees
from millrace.datasets.dataset_base import DatasetBase, relation_of_other, shown_call
from millrace.datasets.dataset_rows import DatasetRows
from millrace.errors import UserError
from millrace.plan.builders.build_select import attribute_tree, select
from millrace.plan.builders.build_set_rows import (
    row_differences,
    union_all,
    union_by_name,
    zipped,
)
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.reshape.build_unpivot import UnpivotedColumns, unpivoted


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetSets(DatasetRows):
    """A dataset's rows together with those of others."""

    def union(self, other: DatasetBase, *more: DatasetBase) -> Self:
        """All rows of this dataset and the others. Columns match by position, as in Spark.

        Example:
            >>> orders.union(orders.filter("amount > 10")).count()
            5
        """
        sides = [relation_of_other(side, "union").only_visible() for side in (other, *more)]
        with self._building("union()") as context:
            return self._with(union_all(context, [self._relation.only_visible(), *sides]))

    def unionAll(self, other: DatasetBase) -> Self:
        """All rows of both: `union`."""
        return self.union(other)

    def unionByName(self, other: DatasetBase, allowMissingColumns: bool = False) -> Self:
        """All rows of both. Columns match by name; with `allowMissingColumns` others are null."""
        mine, theirs = self._relation, relation_of_other(other, "unionByName")
        with self._building("unionByName()") as context:
            whole = union_by_name(context, mine, theirs, missing=allowMissingColumns)
            return self._with(whole)

    def intersect(self, other: DatasetBase) -> Self:
        """The rows that both have, each once."""
        return self._compared("intersect", other, matching=True, every=False)

    def intersectAll(self, other: DatasetBase) -> Self:
        """The rows that both have, as often as both have them."""
        return self._compared("intersectAll", other, matching=True, every=True)

    def subtract(self, other: DatasetBase) -> Self:
        """The rows that the other has not, each once."""
        return self._compared("subtract", other, matching=False, every=False)

    def exceptAll(self, other: DatasetBase) -> Self:
        """The rows without those of the other, which count as often as it has them."""
        return self._compared("exceptAll", other, matching=False, every=True)

    def zip(self, other: DatasetBase) -> Self:
        """The columns of both, row by row. Both are made of one dataset by choosing columns.

        Example:
            >>> orders.select("cust_id").zip(orders.select("amount * 2 AS twice")).columns
            ['cust_id', 'twice']
        """
        right = relation_of_other(other, "zip")
        with self._building("zip()"):
            return self._with(zipped(self._relation, right))

    def unpivot(
        self,
        ids: ColumnOrName | Sequence[ColumnOrName],
        values: ColumnOrName | Sequence[ColumnOrName] | None,
        variableColumnName: str,
        valueColumnName: str,
    ) -> Self:
        """A row for each value of some columns, with the name of its column; `ids` stay."""
        call = shown_call("unpivot", [ids, values, variableColumnName, valueColumnName])
        relation = self._relation
        with self._building(call) as context:
            kept = column_trees([ids], relation)
            if values is None:
                passed = {resolve(tree, relation.attributes).name for tree in kept}
                given = [attribute_tree(a) for a in relation.visible if a.column not in passed]
            else:
                given = column_trees([values], relation)
            if not given:
                raise UserError(f"{call} has no values\n  to fix: name columns to unpivot")
            groups = [
                UnpivotedColumns(
                    select(context, relation, [tree]).labels[0],
                    (tree.this if isinstance(tree, exp.Alias) else tree,),
                )
                for tree in given
            ]
            names = (variableColumnName, [valueColumnName])
            return self._with(unpivoted(context, relation, kept, groups, *names, nulls=True))

    def melt(
        self,
        ids: ColumnOrName | Sequence[ColumnOrName],
        values: ColumnOrName | Sequence[ColumnOrName] | None,
        variableColumnName: str,
        valueColumnName: str,
    ) -> Self:
        """`unpivot` under its other name."""
        return self.unpivot(ids, values, variableColumnName, valueColumnName)

    def _compared(self, method: str, other: object, *, matching: bool, every: bool) -> Self:
        left = self._relation.only_visible()
        right = relation_of_other(other, method).only_visible()
        call = f"{method}()"
        if len(left.labels) != len(right.labels):
            raise UserError(
                f"{call} of different columns\n  found: {', '.join(left.labels)}, and "
                f"{', '.join(right.labels)}\n  to fix: select as many columns of each"
            )
        with self._building(call) as context:
            rows = row_differences(context, left, right, matching=matching, every=every)
            return self._with(rows)
