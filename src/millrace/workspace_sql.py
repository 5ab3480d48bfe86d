"""The calls of a workspace that take DataFrames, name datasets and query them in SQL."""

from __future__ import annotations

import os
import string
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from millrace.datasets.column_arguments import column_text, is_column
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import relation_in
from millrace.datasets.sql_views import SqlViews
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.parameters import Arguments
from millrace.scan.input_files import Paths
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.workspace_reader import DataFrameReader
from millrace.workspace_session import TableFunctions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.udfs.table_functions import UserTableFunctions
    from millrace.spark.udfs.udf_registry import UdfRegistry


class WorkspaceSql:
    """DataFrames of Spark, and SQL over views. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    def sql(self, sqlQuery: str, args: Arguments = None, **kwargs: object) -> Dataset:  # noqa: N803 - as in PySpark
        """The rows of a Spark SQL query over views, files and tables of Spark's catalog.

        Args:
            sqlQuery: one query, as `spark.sql` takes it.
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
        if not kwargs:
            return self._dataset(self._runtime.views.statement(sqlQuery, args))
        with SqlFormat(self._runtime.views) as names:
            text = names.vformat(sqlQuery, (), kwargs)
            return self._dataset(self._runtime.views.statement(text, args))

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
        return self._runtime.dataset_runner().registry

    @property
    def udtf(self) -> UserTableFunctions:
        """Table functions that SQL calls by name: `ws.udtf.register(name, function)`.

        Spark calls them.

        Example:
            >>> registry = ws.udtf
        """
        from millrace.spark.udfs.table_functions import UserTableFunctions  # noqa: PLC0415 - as below

        return UserTableFunctions(lambda: self._runtime.spark)

    def view(self, name: str, rows: Dataset | Paths | DataFrame) -> None:
        """Name a dataset, Parquet files or a DataFrame, for `sql`. It replaces an older view.

        Example:
            >>> ws.view("customers", "customers/")
            >>> ws.sql("SELECT count(*) AS n FROM customers").columns
            ['n']
        """
        self._runtime.views.put(name, self._relation(rows))

    def table(self, tableName: str) -> Dataset:  # noqa: N803 - as in PySpark
        """The dataset of a view, or of a table of Spark's catalog.

        Example:
            >>> ws.view("orders", orders)
            >>> ws.table("orders").columns
            ['cust_id', 'amount']
        """
        return self._dataset(self._runtime.views.table(tableName))

    def drop_view(self, name: str) -> bool:
        """Forget a view; False if there is none of this name.

        Example:
            >>> ws.drop_view("nothing")
            False
        """
        return self._runtime.views.drop(name)

    @property
    def read(self) -> DataFrameReader:
        """Reads files, with the calls of `spark.read`.

        Example:
            >>> ws.read.parquet("orders/").count()
            3
        """
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
            return self._runtime.read_arrow_rows(data)
        make: Any = self._runtime.spark.createDataFrame
        frame = make(data, schema, samplingRatio, verifySchema)
        return self._runtime.read_arrow_rows(frame.toArrow())

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
        return self._runtime.read_frame(frame, version)

    def durable(self, frame: DataFrame) -> DataFrame:
        """The same DataFrame, with rows that were computed durably.

        It runs now, as `from_spark(frame)`. What is finished is not computed again, in the next
        application either. Spark reads the saved rows.

        Example:
            >>> ws.durable(spark.range(10).filter("id > 6")).count()
            3
        """
        return self.from_spark(frame).to_spark()

    def _relation(self, rows: Dataset | Paths | DataFrame) -> Relation:
        if isinstance(rows, Dataset):
            return relation_in(rows)
        if isinstance(rows, str | os.PathLike | list | tuple):
            return relation_in(self._runtime.read_files(rows, "parquet"))
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - reading needs no Spark

        return relation_of(frame_scan(rows, None, self._runtime.config))

    def _dataset(self, relation: Relation) -> Dataset:
        return Dataset(relation, self._runtime.dataset_runner())


class SqlFormat(string.Formatter):
    """Writes datasets, columns and values into a text of SQL, as `spark.sql` does.

    A dataset gets a name of its own as long as the statement is read.
    """

    def __init__(self, views: SqlViews) -> None:
        self._views, self._names = views, dict[int, str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names.values():
            self._views.drop(name)

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, int | str]:
        """The text of a value: of `{orders}`, `{orders.amount}` or `{least}`."""
        value, first = super().get_field(field_name, args, kwargs)
        if isinstance(value, Dataset):
            name = self._names.setdefault(id(value), f"_millrace_{uuid.uuid4().hex}")
            self._views.put(name, relation_in(value))
            return name, first
        if is_column(value):
            return column_text(value), first
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'", first
        return value, first
