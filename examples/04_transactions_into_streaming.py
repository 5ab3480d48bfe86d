"""Transactions across journals into Structured Streaming: no micro-batch shows half of one.

A bank writes each transfer into two journals, as one transaction, while a Spark query reads both.
In each micro-batch, the debits are equal to the credits.
"""

import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import millrace as mr

FOLDER = "example-04"
MILL = f"{FOLDER}/mill"
READ = '{"name": "ledger", "bindings": [{"name": "all", "prefix": "bank", "key": ["account"]}]}'
COLUMNS = pa.schema([("account", pa.int64()), ("amount", pa.int64())])
shown: list[int] = []


def check(rows: DataFrame, batch: int) -> None:
    """Compare both sides of the transfers in this micro-batch."""
    table, totals = rows.toArrow(), {}
    for journal in ("bank/debits", "bank/credits"):
        amounts = table.filter(pc.field("_mr_journal") == journal)["amount"]
        totals[journal] = pc.sum(amounts, min_count=0).as_py()
    assert totals["bank/debits"] == totals["bank/credits"], f"half a transfer: {totals}"
    if table.num_rows:
        shown.append(totals["bank/debits"])
        print(f"batch {batch}: {table.num_rows} rows, {totals}")


shutil.rmtree(FOLDER, ignore_errors=True)
with mr.open(MILL) as ws:  # This process owns the journals; Spark's processes join it.
    for name in ("debits", "credits"):
        ws.journals.create(f"bank/{name}", COLUMNS)
    stream = ws.spark.readStream.format("millrace").option("path", MILL).option("read", READ).load()
    writer = stream.writeStream.foreachBatch(check)
    query = writer.option("checkpointLocation", f"{FOLDER}/log").start()
    bank, random, moved, transfers = ws.journals.producer("bank"), np.random.default_rng(4), 0, 0
    while len(shown) < 3 and query.isActive:
        amounts = random.integers(1, 500, 2)
        for name in ("debits", "credits"):
            rows = {"account": random.integers(0, 100, 2), "amount": amounts}
            bank.append(f"bank/{name}", pa.table(rows))
            time.sleep(0.02)  # Long enough to see one side without the other.
        transfers += 1
        if transfers % 5 == 0:
            bank.rollback()  # These rows are never shown.
        else:
            bank.commit()
            moved += int(amounts.sum())
    while sum(shown) < moved:
        query.processAllAvailable()
    query.stop()
print(f"{transfers} transfers, {transfers // 5} rolled back: {moved} moved, {sum(shown)} shown")
