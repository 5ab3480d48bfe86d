"""The data source itself: gives Spark its schema, readers and writers.

It imports nothing but Spark's own interface before the first call, since Spark loads it whenever
it looks for data sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from millrace.spark.source.source_options import SourceOptions, Use


class MillraceSource(DataSource):
    """Shuffles, journals, rows of jobs and coordinated reads as `format("millrace")`.

    Example:
        >>> frame = spark.read.format("millrace").option("shuffle", shuffle.query_id).load(ws.path)
        >>> frame.columns
        ['cust_id', 'amount']
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "millrace"

    def schema(self) -> StructType:
        """The columns of the source, from the workspace."""
        from millrace.spark.source import catalog_tables  # noqa: PLC0415 - as light as can be

        if catalog_tables.is_table(self.options):
            return catalog_tables.remember(self._columns(), self.options)
        return self._columns()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a shuffle, a journal or the rows of a step."""
        from millrace.spark.source import batch_reader  # noqa: PLC0415

        return batch_reader.make_reader(self._parsed("read", schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Writes a DataFrame into journals, or into a shuffle."""
        options = self._parsed("write")
        if options.shuffle is not None:
            from millrace.spark.source import shuffle_writer  # noqa: PLC0415

            return shuffle_writer.make_writer(options, schema, overwrite=overwrite)
        from millrace.spark.source import journal_writer  # noqa: PLC0415

        return journal_writer.make_writer(options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Streams a coordinated read."""
        from millrace.spark.versions.spark_versions import READ_LIMITS, has  # noqa: PLC0415

        options = self._parsed("stream", schema)
        if has(READ_LIMITS):
            from millrace.spark.source.limited_stream import LimitedStreamReader  # noqa: PLC0415

            return LimitedStreamReader(options, schema)
        from millrace.spark.source.whole_stream import WholeStreamReader  # noqa: PLC0415

        return WholeStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Writes the micro-batches of a query into journals."""
        from millrace.spark.versions.spark_versions import (  # noqa: PLC0415
            ARROW_STREAM_WRITER,
            has,
            lacks,
        )

        if not has(ARROW_STREAM_WRITER):
            fix = "write in foreachBatch with a batch write"
            raise lacks("a stream into journals", ARROW_STREAM_WRITER, fix)
        from millrace.spark.source import stream_writer  # noqa: PLC0415

        return stream_writer.make_writer(self._parsed("stream write"), schema, overwrite=overwrite)

    def _columns(self) -> StructType:
        if "read" in self.options or "name" in self.options:
            from millrace.spark.source import stream_reader  # noqa: PLC0415

            return stream_reader.stream_schema(self._parsed("stream"))
        from millrace.spark.source import batch_reader  # noqa: PLC0415

        return batch_reader.schema_of(self._parsed("read"))

    def _parsed(self, use: Use, schema: StructType | None = None) -> SourceOptions:
        """The options, checked; for a read, also the options in the table's columns."""
        from millrace.spared_work import spare_pandas  # noqa: PLC0415
        from millrace.spark.source import catalog_tables  # noqa: PLC0415
        from millrace.spark.source.source_options import parse  # noqa: PLC0415

        spare_pandas()
        given = dict(self.options)
        return parse(given if schema is None else catalog_tables.recall(given, schema), use)
