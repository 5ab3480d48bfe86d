"""A shuffle as a Spark DataFrame: one Spark partition for each partition of the shuffle.

Each task reads map outputs that lie on its own host from the disk and fetches the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from millrace.config import Config
from millrace.ids import FolderId
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.spark.folders import Folders
from millrace.transport.addresses import known_agents

Batches = Iterator[pa.RecordBatch]


def to_frame(spark: SparkSession, shuffle: Shuffle, folders: Folders, config: Config) -> DataFrame:
    """The rows of a shuffle, partition by partition."""
    types = from_arrow_schema(shuffle.schema, prefer_timestamp_ntz=True)
    wanted = to_arrow_schema(types, timezone="UTC")
    addresses = known_agents(shuffle.stores[None])
    function = _read_partitions(shuffle.manifest, folders, config, addresses, wanted)
    numbers = spark.range(0, shuffle.partitions, 1, shuffle.partitions)
    return numbers.mapInArrow(function, types)


def _read_partitions(
    manifest: Manifest,
    folders: Folders,
    config: Config,
    addresses: Mapping[FolderId, str],
    wanted: pa.Schema,
) -> Callable[[Batches], Batches]:
    def read(numbers: Batches) -> Batches:
        agents = folders.agents(config, addresses.get)
        try:
            shuffle = Shuffle(manifest=manifest, stores=folders.stores(), remote=agents)
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for rows in shuffle.batches(number):
                        yield rows.cast(wanted)
        finally:
            agents.close()

    return read
