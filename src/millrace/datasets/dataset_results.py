"""The results of a dataset: rows, DataFrames, files and reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.datasets.dataset_base import DatasetBase
from millrace.durations import ms
from millrace.identity.schemas import plain_schema
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.scan import Scan
from millrace.shuffle.reports import ParquetWritten, QueryReport
from millrace.sql.name_checks import check_rows, check_unique_labels, name_list
from millrace.storage.storage_options import storage_options as access_options
from millrace.tables.postgres.database import Database
from millrace.tables.postgres.database_address import Password, database_address
from millrace.tables.postgres.whole_write import WriteMode, whole_write
from millrace.text import HtmlText, PlainText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetResults(DatasetBase):
    """The calls that run a dataset's plan, and its columns."""

    def __repr__(self) -> str:
        fields = self.arrow_schema
        return f"Dataset[{', '.join(f'{field.name}: {field.type}' for field in fields)}]"

    @property
    def schema(self) -> StructType:
        """Columns with Spark's types, known without running anything.

        Example:
            >>> orders.schema["amount"].dataType
            LongType()
        """
        types = self._runner.spark_schema(self.arrow_schema)
        for field, attribute in zip(types.fields, self._relation.visible, strict=True):
            if attribute.metadata is not None:
                field.metadata = json.loads(attribute.metadata)
        return types

    @property
    def arrow_schema(self) -> pa.Schema:
        """Columns with Arrow's types, known without running anything.

        Example:
            >>> orders.arrow_schema.field("amount").type
            DataType(int64)
        """
        return self._relation.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns.

        Example:
            >>> orders.columns
            ['cust_id', 'amount']
        """
        return self._relation.labels

    def collect(self) -> list[Row]:
        """All rows as a list of Spark's rows.

        Example:
            >>> [row.amount for row in orders.collect()]
            [10, 20, 30]
        """
        return self._runner.spark_rows(self.to_arrow())

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table.

        Example:
            >>> orders.to_arrow()["amount"].to_pylist()
            [10, 20, 30]
        """
        return pa.Table.from_batches(self._all_batches(), self.arrow_schema)

    def toArrow(self) -> pa.Table:
        """`to_arrow` under Spark's name."""
        return self.to_arrow()

    def toPandas(self) -> Any:  # noqa: ANN401 - a DataFrame of pandas
        """All rows as a DataFrame of pandas, with the types that Spark chooses."""
        return self.to_spark().toPandas()

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:
        """All rows one by one, read batch by batch."""
        del prefetchPartitions
        return (
            row
            for batch in self.to_batches()
            for row in self._runner.spark_rows(pa.Table.from_batches([batch]))
        )

    def tail(self, num: int) -> list[Row]:
        """The last rows."""
        check_rows(num, f"tail({num!r})")
        last: list[pa.RecordBatch] = []
        count = 0
        for batch in self._all_batches():
            last.append(batch)
            count += batch.num_rows
            while last and count - last[0].num_rows >= num:
                count -= last.pop(0).num_rows
        table = pa.Table.from_batches(last, self.arrow_schema)
        return self._runner.spark_rows(table.slice(max(0, table.num_rows - num)))

    def foreach(self, f: Callable[[Row], None]) -> None:
        """Call a function for each row, in Spark's tasks."""
        self.to_spark().foreach(f)

    def foreachPartition(self, f: Callable[[Iterator[Row]], None]) -> None:
        """Call a function for each partition, in Spark's tasks."""
        self.to_spark().foreachPartition(f)

    def pandas_api(self, index_col: str | list[str] | None = None) -> Any:  # noqa: ANN401 - pandas on Spark
        """The saved rows for pandas on Spark, which Spark runs."""
        return self.to_spark().pandas_api(index_col)

    @property
    def plot(self) -> Any:  # noqa: ANN401 - Spark's
        """Draws the saved rows, as Spark draws a DataFrame."""
        return self.to_spark().plot

    def printSchema(self, level: int | None = None) -> None:
        """Print the columns as a tree."""
        depth = {} if level is None else {"maxDepth": level}
        print(self.schema.treeString(**depth))  # noqa: T201 - what it is for

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and types of the columns, in Spark's words."""
        return [(field.name, field.dataType.simpleString()) for field in self.schema.fields]

    @property
    def isStreaming(self) -> bool:
        """False: a dataset has an end."""
        return False

    def isLocal(self) -> bool:
        """False: Spark's tasks compute the rows."""
        return False

    @property
    def sparkSession(self) -> SparkSession:
        """The session of the workspace; one is started if there is none."""
        return self._runner.spark_session

    def inputFiles(self) -> list[str]:
        """The files that the query reads."""
        return sorted(_files_of(self._plan))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as a stream of batches, the first ones while the query still runs.

        It returns with the first rows. A stream that is dropped cancels the rest of the query;
        finished tasks are kept.

        Example:
            >>> sum(batch.num_rows for batch in orders.to_batches())
            3
        """
        return self._labelled(self._runner.early_batches(self._plan))

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once the query is done."""
        rows, _ = self._runner.batches(self._plan)
        return self._labelled(rows)

    def _labelled(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._relation.has_unique_labels:
            return rows
        labels = self._relation.labels
        return (batch.rename_columns(labels) for batch in rows)

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame, in their order.

        The query runs now. Spark's tasks read its saved rows when Spark runs the DataFrame.

        Example:
            >>> frame = orders.filter("amount > 10").to_spark()
            >>> frame.columns, frame.count()
            (['cust_id', 'amount'], 2)
        """
        frame = self._runner.frame(self._plan)
        if not self._relation.has_unique_labels:
            return frame.toDF(*self._relation.labels)
        for attribute in self._relation.visible:
            if attribute.metadata is not None:
                frame = frame.withMetadata(attribute.label, json.loads(attribute.metadata))
        return frame

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        mode: str = "error",
        *,
        compression: str = "snappy",
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> ParquetWritten:
        """Write the rows as a folder of Parquet files, all of it or nothing.

        Args:
            path: the folder, on a disk that all hosts share or in a bucket. In a bucket it is
                whole as soon as there is `_SUCCESS`.
            mode: "error" if there is something already, or "overwrite".
            compression: "none", "snappy", "gzip", "lz4" or "zstd".
            partition_by: columns of whole numbers, texts, dates or booleans, for a folder for each
                of their values, named as Spark does: `day=2024-05-01/`.
            storage_options: how to reach the bucket, where the environment does not say it.

        Example:
            >>> written = orders.write_parquet("copy", mode="overwrite", compression="zstd")
            >>> ws.read_parquet("copy").count() == written.rows
            True
        """
        check_unique_labels(self._relation.labels, "write_parquet()")
        options = access_options(storage_options)
        by = name_list(partition_by)
        return self._runner.write_parquet(self._plan, path, mode, compression, options, by)

    def write_postgres(
        self,
        url: str,
        table: str,
        mode: WriteMode = "append",
        *,
        keys: str | Sequence[str] = (),
        create: bool = True,
        once: str | None = None,
        password: Password | None = None,
    ) -> int:
        """Write the rows to a table of PostgreSQL in one transaction: all of them or none.

        Args:
            url: `postgresql://user@host:5432/database`.
            table: `"orders"` or `"shop.orders"`.
            mode: "append", or "overwrite" what the table has.
            keys: columns with a unique index; a row replaces the row with the same keys.
            create: make the table if there is none.
            once: names this write, as a date does: what was written under a name is not written
                again, also after a kill.
            password: or a function that gives it; by default libpq looks for one.

        Example:
            >>> write = orders.write_postgres  # write("postgresql://me@db.example/shop", "orders")
        """
        check_unique_labels(self._relation.labels, "write_postgres()")
        who = f"write_postgres({table!r})"
        write = whole_write(
            who, table, plain_schema(self.arrow_schema), mode, keys, create=create, once=once
        )
        address, wait_ms = (
            database_address(who, url, password),
            ms(self._runner.config.database_wait),
        )
        with Database(address, wait_ms, what=who, statement_ms_max=0) as database:
            written = write.prepare(database)
            if written is not None:
                return written
            # The query runs now, and not within a transaction.
            return write.write(database, self._runner.rows_again(self._plan))

    def write_iceberg(
        self,
        table: str,
        mode: str = "append",
        *,
        catalog: object = None,
        keys: str | Sequence[str] = (),
        once: str | None = None,
        keep_snapshots: int | None = None,
    ) -> int | None:
        """Write the rows to an Iceberg table in one commit; its snapshot, None if `once` is taken.

        Args:
            table: `"db.table"`. It is made if there is none.
            mode: "append", "overwrite" the partitions of the rows (or the whole table if it has
                none), or "upsert" by `keys`, through the memory of the driver.
            catalog: as in `ws.read_iceberg`.
            keys: the columns by which rows replace others.
            once: a name, as a date; what was written under it is not written again.
            keep_snapshots: how many of the table's snapshots the commit leaves; all by default.

        Example:
            >>> write = orders.write_iceberg  # write("shop.orders", catalog="prod")
        """
        from millrace.tables.iceberg.iceberg_target import target_of  # noqa: PLC0415 - an extra

        check_unique_labels(self._relation.labels, "write_iceberg()")
        who, schema = f"write_iceberg({table!r})", plain_schema(self.arrow_schema)
        target = target_of(table, catalog, call=who, keep_snapshots=keep_snapshots)
        from millrace.tables.iceberg.iceberg_whole_writes import IcebergWrite  # noqa: PLC0415

        write = IcebergWrite(target, mode, keys, once, who)
        write.check(schema, self._runner.config)
        if write.is_done():
            return None
        if mode == "upsert":
            return write.upsert(pa.Table.from_batches(self._all_batches(), schema))
        return write.commit(self._runner.write_table_files(self._plan, target, who))

    def run(self) -> QueryReport:
        """Save the rows in the workspace, and report what ran, what was reused and why.

        Example:
            >>> counted = orders.group_by("cust_id").agg(n="count(*)")
            >>> first = counted.run()
            >>> counted.run().ran  # nothing runs a second time
            0
        """
        _, report = self._runner.batches(self._plan)
        return report

    def explain(
        self,
        extended: bool | str | None = None,
        mode: str | None = None,
        *,
        analyze: bool = False,
    ) -> PlainText:
        """The stages of the query and their exchanges, as text.

        There is one plan here, and it is shown whole: `extended` and `mode` are Spark's, and taken.

        It says what each stage reads, how much of that, and which tasks would be reused. With
        `analyze` the query runs, and each stage has its tasks, rows, bytes and seconds.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").explain(analyze=True)
            stage 0...
        """
        del extended, mode
        return PlainText(self._runner.explain(self._plan, analyze=analyze, html=False))

    def explain_html(self, *, analyze: bool = False) -> HtmlText:
        """The stages of the query as a picture, which a notebook shows.

        Example:
            >>> picture = orders.group_by("cust_id").agg(n="count(*)").explain_html()
            >>> "stage 0" in picture
            True
        """
        return HtmlText(self._runner.explain(self._plan, analyze=analyze, html=True))


def _files_of(node: Node) -> set[str]:
    if isinstance(node, Scan):
        return {shape.file.path for shape in node.source.shapes}
    return {path for child in node.children for path in _files_of(child)}
