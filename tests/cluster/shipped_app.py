"""An application whose executors have Millrace only from what was submitted with it.

spark-submit --py-files millrace.zip shipped_app.py INPUTS WORKSPACE ANSWERS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr

PARTITIONS = 4


def where_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where tasks find Millrace, and whether they have its compiled kernels."""
    import sys

    import millrace
    from millrace.keys import compiled_kernels

    for batch in batches:
        found = [
            f"{sys.prefix} {millrace.__file__} {compiled_kernels.available()}"
        ] * batch.num_rows
        yield pa.RecordBatch.from_pydict({"found": found})


def main() -> None:
    inputs, mill, answers = sys.argv[1:4]
    spark = SparkSession.builder.getOrCreate()
    found = spark.range(0, 4, 1, 4).mapInArrow(where_from, "found string").distinct().collect()
    ws = mr.open(mill, spark)
    done = ws.shuffle(inputs, keys="k", partitions=PARTITIONS)
    rows = done.to_spark().selectExpr("spark_partition_id() p", "pmod(hash(k), 4) h", "v")
    placed = [[row.p, row.h, row.v] for row in rows.collect()]
    job = ws.job("doubles")
    numbers = job.source("numbers", spark.range(20), partitions=2)
    numbers.map("double", lambda row: {"id": 2 * row["id"]}, schema="id bigint").sink_journal("out")
    report = job.run()
    out = ws.journals.read("out", 0).rows()["id"].to_pylist()
    told = {
        "tasks": [row.found for row in found],
        "ran": done.report.ran,
        "placed": sorted(placed),
        "job": report.state,
        "out": sorted(out),
    }
    ws.close()
    Path(answers).write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
