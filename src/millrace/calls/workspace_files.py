"""The calls of a workspace that read users' files and tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.names import path_text, shown
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.tables.postgres.database_address import Password, database_address
from millrace.tables.postgres.query_reading import DatabaseQuery
from millrace.text import is_whole

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset
    from millrace.scan.input_files import Paths

_CONNECTIONS_MAX: Final = 64
"""A server has 100 connections unless it is told otherwise."""


class WorkspaceFiles:
    """Files and tables as datasets. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    def read_parquet(
        self, paths: Paths, *, storage_options: Mapping[str, str] | None = None
    ) -> Dataset:
        """Parquet files as a dataset.

        Args:
            paths: files, folders or globs, or several: on a disk, or at s3://, gs://, abfss://,
                az:// or hdfs://.
            storage_options: how a bucket is reached if the environment does not say, under the
                names of delta-rs and Polars, as `aws_access_key_id`. They are sent to tasks and
                written nowhere.

        Example:
            >>> ws.read_parquet("orders/*.parquet").columns
            ['cust_id', 'amount']
        """
        return self._runtime.datasets.read_files(paths, "parquet", access=storage_options)

    def read_iceberg(
        self, table: object, *, catalog: object = None, snapshot: int | str | None = None
    ) -> Dataset:
        """A snapshot of an Iceberg table as a dataset. Needs the extra `iceberg`.

        The snapshot is chosen now. Reading a later one reuses the work on files that it still has.

        Args:
            table: `"db.table"`, the place of a metadata file or of a table's folder, or a table
                that pyiceberg loaded.
            catalog: a catalog's name, its properties, or a catalog of pyiceberg. If it is left out,
                the catalog of the table's first name is taken, or the default one, as
                `.pyiceberg.yaml` and the environment say. Properties are sent to tasks as far as
                files are reached by them, and written nowhere.
            snapshot: the id of a snapshot, a branch or a tag, instead of the current snapshot.

        Example:
            >>> reader = ws.read_iceberg  # reader("shop.orders", catalog="prod")
        """
        return self._runtime.datasets.read_iceberg(table, catalog, snapshot)

    def read_delta(
        self,
        uri: str | os.PathLike[str],
        version: int | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Dataset:
        """A Delta table as a dataset, at one version: that of now, unless one is named.

        Its files are read natively, without those that a filter leaves out. A later version costs
        the files that changed.

        Args:
            uri: a folder, or an address at s3://, gs://, abfss:// or az://.
            version: the number of a version.
            storage_options: how a bucket is reached if the environment does not say.

        Example:
            >>> from deltalake import write_deltalake
            >>> write_deltalake("tables/orders", orders.to_arrow())
            >>> ws.read_delta("tables/orders").columns
            ['cust_id', 'amount']
        """
        return self._runtime.datasets.read_delta(
            path_text(uri, "read_delta"), version, storage_options
        )

    def read_arrow(
        self, paths: Paths, *, storage_options: Mapping[str, str] | None = None
    ) -> Dataset:
        """Arrow IPC files as a dataset.

        Example:
            >>> ws.read_arrow("orders.arrow").columns
            ['cust_id', 'amount']
        """
        return self._runtime.datasets.read_files(paths, "arrow", access=storage_options)

    def read_csv(
        self,
        paths: Paths,
        *,
        schema: pa.Schema | None = None,
        delimiter: str = ",",
        header: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> Dataset:
        """CSV files as a dataset; types are inferred from the first file if not given.

        Example:
            >>> ws.read_csv("orders.csv").arrow_schema.types
            [DataType(int64), DataType(int64)]
        """
        options = {"delimiter": delimiter, "header": header}
        return self._runtime.datasets.read_files(
            paths, "csv", schema, options, access=storage_options
        )

    def read_json(
        self,
        paths: Paths,
        *,
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Dataset:
        """JSON files, an object a line, as a dataset.

        Example:
            >>> ws.read_json("orders.json").columns
            ['cust_id', 'amount']
        """
        return self._runtime.datasets.read_files(paths, "json", schema, access=storage_options)

    def read_postgres(
        self,
        url: str,
        table: str,
        *,
        partition_on: str | None = None,
        partitions: int = 4,
        version: str | None = None,
        password: Password | None = None,
    ) -> Dataset:
        """A table of PostgreSQL, or a query, as a dataset.

        The rows are read now, of one moment, and saved in the workspace: work on equal rows is
        reused, work on others is done again.

        Args:
            url: `postgresql://user@host:5432/database`.
            table: `"orders"`, `"shop.orders"` or a query.
            partition_on: a column of whole numbers, dates or timestamps; its ranges are read over
                `partitions` connections at once, which see one snapshot.
            partitions: how many.
            version: names the rows as they are: a version that was read is not read again.
            password: or a function that gives it; by default libpq looks for one.

        Example:
            >>> orders = ws.read_postgres  # orders("postgresql://me@db.example/shop", "orders")
        """
        who = "read_postgres()"
        for what, given in (("table", table), ("version", "1" if version is None else version)):
            _check_given(f"{who}: {what}", given)
        if not is_whole(partitions, 1, _CONNECTIONS_MAX):
            raise UserError(
                f"{who}: partitions is {shown(partitions)}\n"
                f"  to fix: give a whole number from 1 to {_CONNECTIONS_MAX}"
            )
        query = DatabaseQuery(
            address=database_address(who, url, password),
            asked=table,
            by=partition_on,
            parts=1 if partition_on is None else partitions,
            who=who,
        )
        return self._runtime.datasets.read_query(query, version)


def _check_given(what: str, given: object) -> None:
    """Refuse what is no text, or an empty one."""
    if not isinstance(given, str) or not given.strip():
        raise UserError(f"{what} is {shown(given)}\n  to fix: give a text")
