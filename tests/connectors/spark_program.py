"""A Spark with its own connector to tables, which runs a line of SQL after the other.

A process of its own, on another Spark than the tests: there are no connectors for the newest one.
Each line that comes in is JSON: `sql`, and `into`, a file that the rows are written to. With a
`path`, that is read, and `sql` is its format. Each line
that goes out is `{}`, or `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import sys

import pyarrow as pa
import pyarrow.ipc
from pyspark.sql import SparkSession


def main() -> None:
    """Answer until there is no line more."""
    jars, scratch, settings = sys.argv[1:]
    given = [os.path.join(jars, name) for name in sorted(os.listdir(jars))]
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(given))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", os.path.join(scratch, "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
        .config("spark.ui.enabled", "false")
    )
    for name, value in json.loads(settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _tell({})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["path"]:
                frame = spark.read.format(asked["sql"]).load(asked["path"])
            else:
                frame = spark.sql(asked["sql"])
            if asked["into"]:
                rows: pa.Table = frame.toArrow()
                with pa.ipc.new_file(asked["into"], rows.schema) as file:
                    file.write_table(rows)
            _tell({})
        except Exception as error:  # noqa: BLE001 - told to the test
            _tell({"error": str(error)[:2000]})
    spark.stop()


def _tell(answer: dict[str, str]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
