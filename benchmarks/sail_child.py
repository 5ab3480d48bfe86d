"""Answers SQL with Sail, which speaks Spark Connect, in a Python with a client of its own.

    PYTHON benchmarks/sail_child.py FOLDER TABLE ...

PYTHON is of an environment with `pysail` and `pyspark-client`. Each line on its input is a JSON
list of a file with SQL and of a file for the answer, as an Arrow stream. It says the seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]  # of another Python
from pyspark.sql import SparkSession


def main() -> None:
    """Serve until the input ends."""
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    for name in sys.argv[2:]:
        spark.read.parquet(f"{sys.argv[1]}/{name}").createOrReplaceTempView(name)
    print("ready", flush=True)
    for line in sys.stdin:
        text, answer = json.loads(line)
        started = time.perf_counter()
        rows = spark.sql(Path(text).read_text(encoding="utf-8")).toArrow()
        took = time.perf_counter() - started
        with pa.OSFile(answer, "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)
        print(took, flush=True)
    spark.stop()
    server.stop()


if __name__ == "__main__":
    main()
