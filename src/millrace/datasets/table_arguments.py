"""Datasets as arguments of table functions: `dataset.asTable().partitionBy("k").orderBy("day")`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.datasets.column_arguments import ColumnOrName, column_trees
from millrace.datasets.dataset_base import DatasetBase, building, relation_in
from millrace.errors import UserError
from millrace.sql.parser import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArgument:
    """The rows of a dataset for a table function; columns are Spark SQL."""

    dataset: DatasetBase
    partitions: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    is_single: bool = False

    def partitionBy(self, *cols: ColumnOrName) -> TableArgument:
        """Rows with equal values of these columns come together."""
        if self.is_single or self.order:
            raise UserError(
                "partitionBy() comes first, and not with withSinglePartition()\n"
                "  to fix: write asTable().partitionBy(...).orderBy(...)"
            )
        return replace(self, partitions=(*self.partitions, *self._texts("partitionBy", cols)))

    def orderBy(self, *cols: ColumnOrName) -> TableArgument:
        """The order of rows in each partition."""
        if not self.is_single and not self.partitions:
            raise UserError(
                "orderBy() comes after partitionBy() or withSinglePartition()\n"
                "  to fix: write asTable().partitionBy(...).orderBy(...)"
            )
        return replace(self, order=(*self.order, *self._texts("orderBy", cols)))

    def withSinglePartition(self) -> TableArgument:
        """All rows come to one call."""
        if self.partitions:
            raise UserError(
                "withSinglePartition() does not go with partitionBy()\n  to fix: use one of them"
            )
        return replace(self, is_single=True)

    def describe(self) -> str:
        """How rows come, in SQL's words."""
        single = ["WITH SINGLE PARTITION"] if self.is_single else []
        by = [f"PARTITION BY {', '.join(self.partitions)}"] if self.partitions else []
        order = [f"ORDER BY {', '.join(self.order)}"] if self.order else []
        return " ".join(["TABLE", *single, *by, *order])

    def _texts(self, method: str, cols: tuple[ColumnOrName, ...]) -> list[str]:
        with building(self.dataset, f"{method}(...)"):
            return [canonical(tree) for tree in column_trees(cols, relation_in(self.dataset))]
