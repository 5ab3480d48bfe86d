"""A streaming query on the cluster; each batch's rows go to a file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from tests.standalone.session import READ, keep, kept, start_session

from millrace.spark import register

TOO_BUSY = "Python worker failed to connect back"
"""Spark waits ten seconds for a new process; a machine on which tests run may need longer."""


def main(mill: str, out: str, log: str, wanted: str, pause_s: str) -> None:
    """Stream until so many rows are kept, with a pause after each batch."""
    spark = start_session()
    register(spark)

    def take(frame: DataFrame, number: int) -> None:
        rows = sorted(list(row) for row in frame.select("_mr_journal", "key", "amount").collect())
        keep(Path(out) / f"{number}.json", rows)
        time.sleep(float(pause_s))

    stream = (
        spark.readStream.format("millrace")
        .option("path", mill)
        .option("read", json.dumps(READ))
        .option("maxRowsPerTrigger", "100")
        .load()
    )
    writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", log)
    query = writing.start()
    while kept(Path(out)) < int(wanted):
        if not query.isActive:
            assert TOO_BUSY in str(query.exception()), query.exception()
            query = writing.start()
        time.sleep(0.1)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
