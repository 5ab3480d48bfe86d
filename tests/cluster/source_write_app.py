"""A Spark application that streams into journals, and then writes a batch, until it is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from tests.cluster.source_write_kit import READ, Folders

import millrace as mr
from millrace.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def source(spark: SparkSession, folders: Folders, kind: str) -> DataFrame:
    """Transactions over several journals, or files; several micro-batches of either."""
    if kind == "read":
        reader = spark.readStream.format("millrace").option("path", folders.workspace)
        reader = reader.option("read", json.dumps(READ)).option("maxRowsPerTrigger", "60")
        return reader.load().select("key", "amount")
    reader = spark.readStream.schema("key long, amount long").option("maxFilesPerTrigger", 1)
    return reader.parquet(folders.files).repartition(2)


def arm(given: dict[str, Any]) -> None:
    """Have what follows wait at a fault point, if that is asked for."""
    if "arm" in given:
        Path(given["arm"]).write_text(given["with"], encoding="utf-8")


def run(stream: DataStreamWriter) -> None:
    """Write all there is; again if the machine was so busy that Spark gave up on a process."""
    while True:
        try:
            stream.start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return


def main(given: dict[str, Any]) -> None:
    """Do what is asked for, and die."""
    folders = Folders(given["folder"])
    spark = start_session("killed", cores=2)
    mr.register(spark)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    if not given["batch"]:
        arm(given)
    if given["stream"]:
        stream = source(spark, folders, given["stream"]).writeStream.format("millrace")
        stream = stream.option("path", folders.workspace).option("checkpointLocation", folders.log)
        stream = stream.option("journals", "out/{n}").option("keyBy", "key").option("partitions", 2)
        run(stream.trigger(availableNow=True))
        sys.stdout.write("streamed\n")
        sys.stdout.flush()
    if given["batch"]:
        arm(given)
        rows = spark.range(0, given["rows"], 1, 3)
        rows.write.format("millrace").mode("append").option("journal", given["batch"]).save(
            folders.workspace
        )
        sys.stdout.write("written\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # Nothing that is orderly may be needed.


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
