"""Parquet files become a shuffle: made on Spark, made again for nothing, read with no Spark."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr


def make_orders(folder: Path) -> None:
    """Three files of orders, by 100 customers."""
    for number in range(3):
        ids = range(number * 1000, number * 1000 + 1000)
        table = pa.table({"order_id": ids, "cust_id": [order % 100 for order in ids]})
        pq.write_table(table, folder / f"orders-{number}.parquet")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    make_orders(folder)

    with mr.open(folder / "mill") as ws:  # Starts Spark when it is needed, and stops it.
        first = ws.shuffle(folder / "*.parquet", keys="cust_id", partitions=4)
        again = ws.shuffle(folder / "*.parquet", keys="cust_id", partitions=4)
    print(first.report)
    print(again.report)
    assert (first.report.ran, first.report.reused) == (3, 0)
    assert (again.report.ran, again.report.reused) == (0, 3)

    done = mr.open(folder / "mill").open_shuffle(first.query_id)  # No Spark from here on.
    customers = [set(done.read(partition)["cust_id"].to_pylist()) for partition in range(4)]
    assert done.rows == 3000
    assert sum(map(len, customers)) == 100, "a customer lies in more than one partition"
    assert done.verify().ok
    print(f"{done}: {[size.rows for size in done.sizes]} rows each")
