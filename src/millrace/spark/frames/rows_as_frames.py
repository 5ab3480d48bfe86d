"""Saved rows as a Spark DataFrame: Spark's tasks read them when Spark needs them.

Each task reads map outputs on its own host from the disk and fetches the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql.functions import first

from millrace.config import Config
from millrace.execute.task_folders import Folders
from millrace.ids import FolderId
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.spark.source import register
from millrace.spark.spark_presence import call_spark
from millrace.spark.versions.arrow_types import rows_of_table, spark_types, utc_schema
from millrace.transport.agent.agent_addresses import known_agents

Batches = Iterator[pa.RecordBatch]
_Part = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Partitions of a shuffle, and the positions of the map outputs that are read; None for all."""


def read_source(spark: SparkSession, path: str, options: Mapping[str, Any]) -> DataFrame:
    """What `spark.read.format("millrace")` reads of a workspace with these options."""
    register(spark)
    return spark.read.format("millrace").options(**options).load(path)


def to_frame(spark: SparkSession, shuffle: Shuffle, folders: Folders, config: Config) -> DataFrame:
    """The rows of a shuffle: one Spark partition for each of its partitions."""
    parts: list[_Part] = [((number,), None) for number in range(shuffle.partitions)]
    return _frame(spark, shuffle, parts, folders, config)


def outputs_to_frame(
    spark: SparkSession, shuffle: Shuffle, folders: Folders, config: Config
) -> DataFrame:
    """The rows of a shuffle: one Spark partition for each map output that has rows, in order."""
    every = tuple(range(shuffle.partitions))
    chosen = shuffle.manifest.chosen
    parts: list[_Part] = [(every, (n,)) for n, choice in enumerate(chosen) if choice.rows]
    return _frame(spark, shuffle, parts or [(every, (0,))], folders, config)


def of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A small table as a DataFrame with Spark's types."""
    types = spark_types(table.schema)
    if not table.num_rows:
        return spark.createDataFrame([], types)
    # Spark reads no further than the first batch without rows, and drops the others of its task.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    table = pa.Table.from_batches(batches, table.schema)
    return spark.createDataFrame(table.cast(utc_schema(types)), types)


def dataset_column(name: str, number: int) -> Column:
    """A column of Spark Connect that is named through the dataset of this number."""
    from pyspark.sql.connect.expressions import ColumnReference  # noqa: PLC0415 - not in tasks

    from millrace.spark.frames.dataset_columns import DatasetColumn  # noqa: PLC0415 - as above

    return DatasetColumn(ColumnReference(name, number))


def report_metrics(spark: SparkSession, observation: Observation | str, metrics: pa.Table) -> None:
    """Let Spark observe a row, whose values it then reports as they are."""
    frame = of_table(spark, metrics)
    quoted = ["`" + name.replace("`", "``") + "`" for name in metrics.column_names]
    values = [
        first(frame[name]).alias(plain)
        for name, plain in zip(quoted, metrics.column_names, strict=True)
    ]
    frame.observe(observation, *values).collect()


def subquery_column(dataset: object, number: int, use: str) -> Column:
    """A column of Spark Connect that stands for a dataset, which it keeps."""
    from pyspark.sql.connect.expressions import SubqueryExpression  # noqa: PLC0415 - not in tasks

    from millrace.spark.frames.dataset_columns import (  # noqa: PLC0415 - as above
        DatasetAsPlan,
        DatasetColumn,
    )

    plan = DatasetAsPlan(-number, dataset)
    return DatasetColumn(SubqueryExpression(plan, use))  # type: ignore[arg-type] # A number is enough.


def spark_rows(table: pa.Table) -> list[Row]:
    """Rows of a table as Spark's `collect` gives them: times are in this process's time zone."""
    types = spark_types(table.schema)
    if not table.num_columns:
        return [Row()] * table.num_rows
    table = table.cast(utc_schema(types))
    return rows_of_table(table, types)


def _frame(
    spark: SparkSession,
    shuffle: Shuffle,
    parts: Sequence[_Part],
    folders: Folders,
    config: Config,
) -> DataFrame:
    types = spark_types(shuffle.schema)
    arrow_schema = utc_schema(types)
    addresses = known_agents(shuffle.stores[None])
    function = _read_parts(shuffle.manifest, parts, folders, config, addresses, arrow_schema)

    def frame() -> DataFrame:
        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(function, types)

    return call_spark(spark, config, frame)


def _read_parts(
    manifest: Manifest,
    parts: Sequence[_Part],
    folders: Folders,
    config: Config,
    addresses: Mapping[FolderId, str],
    arrow_schema: pa.Schema,
) -> Callable[[Batches], Batches]:
    def read(numbers: Batches) -> Batches:
        agents = folders.agents(config, addresses.get)
        try:
            shuffle = Shuffle(manifest=manifest, stores=folders.stores(config), remote=agents)
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    partitions, outputs = parts[number]
                    part = shuffle.of_outputs(outputs)
                    for partition in partitions:
                        for rows in part.batches(partition):
                            yield rows.cast(arrow_schema)
        finally:
            agents.close()

    return read
