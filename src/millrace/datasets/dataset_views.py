"""The calls that give a dataset a name for SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.datasets.dataset_base import DatasetBase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetViews(DatasetBase):
    """Names of datasets in the SQL of their workspace."""

    def createOrReplaceTempView(self, name: str) -> None:
        """Name this dataset for `ws.sql`, as `ws.view` does; an older view of the name is replaced.

        Example:
            >>> orders.createOrReplaceTempView("orders")
            >>> ws.sql("SELECT max(amount) AS m FROM orders").columns
            ['m']
        """
        self._runner.name_view(name, self._relation, replace=True)

    def createTempView(self, name: str) -> None:
        """Name this dataset for `ws.sql`; an older view of the name is an error.

        Example:
            >>> orders.createTempView("newly_named")
            >>> ws.drop_view("newly_named")
            True
        """
        self._runner.name_view(name, self._relation, replace=False)

    def registerTempTable(self, name: str) -> None:
        """`createOrReplaceTempView` under its old name."""
        self.createOrReplaceTempView(name)

    def createGlobalTempView(self, name: str) -> None:
        """Name the rows for all sessions of this Spark; they are saved now, and Spark reads them.

        `ws.sql` knows the name as `global_temp.name`, as Spark does.
        """
        self._saved_frame().createGlobalTempView(name)

    def createOrReplaceGlobalTempView(self, name: str) -> None:
        """Name the rows for all sessions of this Spark; an older view of the name is replaced."""
        self._saved_frame().createOrReplaceGlobalTempView(name)

    def _saved_frame(self) -> DataFrame:
        return self._runner.frame(self._plan).toDF(*self._relation.labels)
