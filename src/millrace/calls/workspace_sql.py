"""The calls of a workspace that take DataFrames, name datasets and query them in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.calls.workspace_session import TableFunctions
from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.calls.workspace_reader import DataFrameReader
    from millrace.datasets.dataset import Dataset
    from millrace.plan.statements.parameters import Arguments
    from millrace.scan.input_files import Paths
    from millrace.spark.udfs.table_functions import UserTableFunctions
    from millrace.spark.udfs.udf_registry import UdfRegistry


class WorkspaceSql:
    """DataFrames of Spark, and SQL over views. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    def sql(self, sqlQuery: str, args: Arguments = None, **kwargs: object) -> Dataset:  # noqa: N803 - as in PySpark
        """The rows of a Spark SQL query over views, files and tables of Spark's catalog.

        Args:
            sqlQuery: one query, as `spark.sql` takes it. Another statement, as CREATE TEMP VIEW,
                INSERT or SHOW, runs at once, on Spark where it is not about views.
            args: values of parameters: a mapping for `:name`, a list for `?`.
            kwargs: datasets, columns and values for `{name}` in the text.

        Example:
            >>> ws.view("orders", orders)
            >>> big = ws.sql("SELECT cust_id, sum(amount) AS total FROM orders GROUP BY ALL")
            >>> big.columns
            ['cust_id', 'total']
            >>> ws.sql("SELECT * FROM orders WHERE amount > :least", {"least": 15}).count()
            2
            >>> ws.sql("SELECT max({o.amount}) AS most FROM {o}", o=orders).columns
            ['most']
        """
        return self._runtime.datasets.sql(sqlQuery, args, kwargs)

    @property
    def udf(self) -> UdfRegistry:
        """Functions that SQL calls by name: `ws.udf.register(name, function, type)`.

        They run in the tasks, as Spark would call them.

        Example:
            >>> twice = ws.udf.register("twice", lambda x: x * 2, "long")
            >>> ws.view("orders", orders)
            >>> ws.sql("SELECT max(twice(amount)) AS most FROM orders").collect()
            [Row(most=60)]
        """
        return self._runtime.datasets.runner.registry

    @property
    def udtf(self) -> UserTableFunctions:
        """Table functions that SQL calls by name: `ws.udtf.register(name, function)`.

        Spark calls them.

        Example:
            >>> registry = ws.udtf
        """
        from millrace.spark.udfs.table_functions import UserTableFunctions  # noqa: PLC0415 - as below

        return UserTableFunctions(lambda: self._runtime.spark)

    def view(
        self,
        name: str,
        rows: Dataset | Paths | DataFrame,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Name a dataset, Parquet files or a DataFrame, for `sql`. It replaces an older view.

        `storage_options` say how files in a bucket are reached, as for `read_parquet`.

        Example:
            >>> ws.view("customers", "customers/")
            >>> ws.sql("SELECT count(*) AS n FROM customers").columns
            ['n']
        """
        self._runtime.datasets.view(name, rows, storage_options)

    def table(self, tableName: str) -> Dataset:  # noqa: N803 - as in PySpark
        """The dataset of a view, or of a table of Spark's catalog.

        Example:
            >>> ws.view("orders", orders)
            >>> ws.table("orders").columns
            ['cust_id', 'amount']
        """
        return self._runtime.datasets.table(tableName)

    def drop_view(self, name: str) -> bool:
        """Forget a view; False if there is none of this name.

        Example:
            >>> ws.drop_view("nothing")
            False
        """
        return self._runtime.datasets.views.drop(name)

    @property
    def read(self) -> DataFrameReader:
        """Reads files, with the calls of `spark.read`.

        Example:
            >>> ws.read.parquet("orders/").count()
            3
        """
        from millrace.calls.workspace_reader import DataFrameReader  # noqa: PLC0415 - datasets are large

        return DataFrameReader(self._runtime)

    def range(
        self,
        start: int,
        end: int | None = None,
        step: int = 1,
        numPartitions: int | None = None,  # noqa: N803 - as in PySpark
    ) -> Dataset:
        """Numbers in a column `id`, as `spark.range` gives them. The partitions are chosen here.

        Example:
            >>> ws.range(2, 6, 2).to_arrow()["id"].to_pylist()
            [2, 4]
        """
        return TableFunctions(self._runtime).range(start, end, step, numPartitions)

    def createDataFrame(  # noqa: N802 - as in PySpark
        self,
        data: object,
        schema: object = None,
        samplingRatio: float | None = None,  # noqa: N803 - as in PySpark
        verifySchema: bool = True,  # noqa: FBT001, FBT002, N803 - as in PySpark
    ) -> Dataset:
        """Rows of this process as a dataset. Spark infers their types, as it does for its own.

        Example:
            >>> ws.createDataFrame([(1, "fr"), (2, None)], ["cust_id", "nation"]).count()
            2
        """
        if isinstance(data, pa.Table | pa.RecordBatch) and schema is None:
            return self._runtime.datasets.read_arrow_rows(data)
        make: Any = self._runtime.spark.createDataFrame
        frame = make(data, schema, samplingRatio, verifySchema)
        return self._runtime.datasets.read_arrow_rows(frame.toArrow())

    def from_spark(self, frame: DataFrame, version: str | None = None) -> Dataset:
        """A Spark DataFrame as a dataset.

        The plan of a Spark Connect DataFrame is read: its files are read natively, its joins and
        aggregates run here. Parts that are not known here, and all of a classic DataFrame, are
        computed by Spark once in each run of the dataset.

        Args:
            frame: the DataFrame. Rows that Spark computes are saved in the workspace.
            version: a name for exactly these rows, as "customers 2024-05-01". Spark computes them.
                Rows saved under this name and with these columns are not computed again.

        Example:
            >>> numbers = ws.from_spark(spark.range(10), version="the first ten")
            >>> numbers.filter("id > 6").count()
            3
        """
        return self._runtime.datasets.read_frame(frame, version)

    def durable(self, frame: DataFrame) -> DataFrame:
        """The same DataFrame, with rows that were computed durably.

        It runs now, as `from_spark(frame)`. What is finished is not computed again, in the next
        application either. Spark reads the saved rows.

        Example:
            >>> ws.durable(spark.range(10).filter("id > 6")).count()
            3
        """
        return self.from_spark(frame).to_spark()
