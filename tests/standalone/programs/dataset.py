"""Joins, groups and ranks on the cluster; the answer is in a file when it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
from tests.standalone.session import start_session

import millrace as mr


def main(mill: str, inputs: str, out: str, and_placed: str) -> None:
    """Run the query of the tests; `and_placed` also looks where Spark finds rows of a shuffle."""
    spark = start_session()
    config = mr.Config().with_options(
        one_task_bytes_max=1,
        broadcast_bytes_max=1,
        partition_bytes_target=30_000,
        read_together_bytes_max=1,
    )
    with mr.open(mill, spark, config=config) as ws:
        orders = ws.read_parquet(f"{inputs}/orders")
        customers = ws.read_parquet(f"{inputs}/customers")
        totals = orders.join(customers, on="cust").group_by("nation", "day")
        answer = totals.agg(total="sum(amount)", n="count(*)").window(
            partition_by="nation",
            order_by=["total DESC", "day"],
            place="row_number()",
            running="sum(total)",
        )
        reports = answer.run().stages
        pq.write_table(answer.to_arrow(), f"{out}/answer.draft")
        if and_placed == "yes":
            check_placed(ws.shuffle(f"{inputs}/customers", keys="cust", partitions=4))
    done = [[each.ran, each.reused] for each in reports]
    Path(out, "report.json").write_text(json.dumps(done))
    Path(out, "answer.draft").rename(f"{out}/answer.parquet")
    spark.stop()


def check_placed(shuffle: mr.Shuffle) -> None:
    """Rows of a shuffle lie in Spark's partitions as Spark's own hash says."""
    where = f"spark_partition_id() = pmod(hash(cust), {shuffle.partitions}) right"
    found = shuffle.to_spark().selectExpr(where).groupBy("right").count().collect()
    assert [row["right"] for row in found] == [True], found


if __name__ == "__main__":
    main(*sys.argv[1:])
