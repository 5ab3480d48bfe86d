"""Makes the workspace that the pages are shown on: queries, a paid job, journals, a read.

python -m tests.browser.recorded FOLDER
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr

ORDERS = 6_000
CUSTOMERS = 400
REVIEWS = 240
CONFIG = mr.Config(one_task_bytes_max=1, partition_bytes_target=16_384, broadcast_bytes_max=1)


class Review(TypedDict):
    order_id: int
    nation: str
    score: float


def review(row: dict[str, Any], context: mr.Context) -> Review:
    """Stands in for a paid model: slow for some rows, and not fond of others."""
    time.sleep(0.004 + row["order_id"] % 7 * 0.001)
    if row["order_id"] % 40 == 7:
        raise ValueError(f"the text of order {row['order_id']} is empty")
    if row["order_id"] % 90 == 11:
        raise TimeoutError("no answer after 30 s")
    context.spend(tokens_in=220, tokens_out=35, usd=0.000312, model="stand-in-1")
    return {"order_id": row["order_id"], "nation": row["nation"], "score": row["amount"] / 1000}


def write_inputs(folder: Path) -> None:
    """Orders and customers; a third of the orders are one customer's."""
    made = random.Random(7)  # noqa: S311 - rows of an example
    nations = ["Chile", "France", "Ghana", "India", "Japan", "Kenya", "Peru", "Spain"]
    for part in range(4):
        ids = range(part * ORDERS // 4, (part + 1) * ORDERS // 4)
        rows = {
            "order_id": list(ids),
            "cust_id": [3 if n % 3 == 0 else made.randrange(CUSTOMERS) for n in ids],
            "amount": [made.randrange(1, 1000) for _ in ids],
        }
        (folder / "orders").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), folder / "orders" / f"{part}.parquet")
    customers = {
        "cust_id": list(range(CUSTOMERS)),
        "nation": [nations[n % len(nations)] for n in range(CUSTOMERS)],
    }
    (folder / "customers").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(customers), folder / "customers" / "all.parquet")


def totals(ws: mr.Workspace, folder: Path) -> mr.Dataset:
    """The amount of each nation."""
    orders = ws.read_parquet(str(folder / "orders"))
    customers = ws.read_parquet(str(folder / "customers"))
    joined = orders.join(customers, on="cust_id")
    return joined.group_by("nation").agg(total="sum(amount)", n="count(*)").sort("nation")


def job_of(ws: mr.Workspace, folder: Path) -> mr.Job:
    """A paid call for each of some orders, the good ones written out."""
    orders = ws.read_parquet(str(folder / "orders")).filter(f"order_id < {REVIEWS}")
    customers = ws.read_parquet(str(folder / "customers"))
    rows = orders.join(customers, on="cust_id").select("order_id", "nation", "amount")
    job = ws.job("reviews")
    reviews = job.source("orders", rows, version="1").map(
        "review", review, expensive=True, version="1", on_error="dead_letter", retries=1
    )
    reviews.filter("score >= 0.25").sink_parquet(str(folder / "reviews"), name="good")
    return job


def journals_and_read(ws: mr.Workspace) -> None:
    """Journals with groups, an open transaction, and a coordinated read with a checkpoint."""
    for shop in ("north", "south"):
        ws.journals.create(
            f"shop/{shop}",
            pa.schema([("cust_id", pa.int64()), ("amount", pa.int64())]),
            labels={"region": shop},
        )
        for begin in range(0, 3_000, 500):
            ids = list(range(begin, begin + 500))
            ws.journals.append(f"shop/{shop}", pa.table({"cust_id": ids, "amount": ids}))
    ws.journals.commit("billing", "shop/north", 1_200, expected=None)
    ws.journals.commit("search", "shop/north", 3_000, expected=None)
    read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="shop", key=["cust_id"])])
    with ws.reads(read, members=2) as session:
        # The first one may show the rows of one journal alone.
        while (checkpoint := session.next_checkpoint(timeout=5)) is not None:
            for member in range(2):
                session.read(member, checkpoint)
            session.commit(checkpoint)


def make(folder: Path) -> None:
    """All of it, in `folder/mill`."""
    write_inputs(folder)
    with mr.open(str(folder / "mill"), config=CONFIG) as ws:
        totals(ws, folder).to_arrow()
        totals(ws, folder).to_arrow()  # All of it is reused.
        late = pa.table({"order_id": [ORDERS], "cust_id": [3], "amount": [10]})
        pq.write_table(late, folder / "orders" / "4.parquet")
        totals(ws, folder).to_arrow()  # One file is new.
        ws.shuffle(str(folder / "orders"), keys="cust_id", partitions=16)
        job_of(ws, folder).run()
        journals_and_read(ws)
        shop = ws.journals.producer("till-4")
        shop.append("shop/south", pa.table({"cust_id": [1], "amount": [5]}))


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    make(Path(sys.argv[1]))
