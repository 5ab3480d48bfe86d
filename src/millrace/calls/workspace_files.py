"""The calls of a workspace that read users' files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset
    from millrace.scan.input_files import Paths


class WorkspaceFiles:
    """Files as datasets. `Workspace` is one."""

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
