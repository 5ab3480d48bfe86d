"""The calls that give a dataset a name for SQL."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.datasets.dataset_base import DatasetBase


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
