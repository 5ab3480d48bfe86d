"""A skewed partition, examined on a laptop: DuckDB reads the files, no Spark is running.

One customer has a third of all orders. The sizes show which partition is too large; its Arrow
files show why.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr

FOLDER = Path("example-05")


def make_orders() -> None:
    """Four files of orders; every third is of customer 4711."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER / "orders")
    for number in range(4):
        customers = np.random.default_rng(number).integers(0, 20_000, 30_000)
        customers[::3] = 4711
        table = pa.table({"cust_id": customers, "amount": customers % 97})
        pq.write_table(table, FOLDER / f"orders/{number}.parquet")


def files_of(run: int, partition: int) -> Iterator[pa.Table]:
    """The rows of a partition from each map task; docs/format.md describes the files."""
    shuffles = FOLDER / "mill" / "shuffle"
    manifest = json.loads((shuffles / f"{run}/0/manifest.json").read_bytes())
    for chosen in manifest["chosen"]:
        folder = shuffles / chosen["attempt"]
        part = json.loads((folder / "index.json").read_bytes())["partitions"][partition]
        if part["file"] is not None:  # Otherwise this map task had no row for the partition.
            data = (folder / part["file"]).read_bytes()
            yield pa.ipc.open_stream(data[part["offset"] :][: part["bytes"]]).read_all()


make_orders()
with mr.open(FOLDER / "mill") as ws:
    shuffle = ws.shuffle(FOLDER / "orders", keys="cust_id", partitions=8)
# Spark has ended. The rest needs only the folder.
for size in shuffle.sizes:
    print(f"partition {size.partition}: {size.rows:6} rows {'#' * (size.rows // 1000)}")
worst = max(shuffle.sizes, key=lambda size: size.rows)
orders = pa.concat_tables(files_of(shuffle.query_id, worst.partition))
query = "SELECT cust_id, count(*) AS n FROM orders GROUP BY 1 ORDER BY 2 DESC LIMIT 3"
print(duckdb.sql(query))
(hot, rows), *_ = duckdb.execute(query).fetchall()
print(f"customer {hot} has {rows} of the {worst.rows} rows of partition {worst.partition}")
