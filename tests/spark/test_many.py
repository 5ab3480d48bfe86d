"""Many map tasks times many partitions: files and open handles stay bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MANY = 1000


def test_a_thousand_map_tasks_times_a_thousand_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(MANY):
        values = pa.array(range(number * 500, number * 500 + 500))
        pq.write_table(pa.table({"v": values}), tmp_path / "in" / f"{number}.parquet")
    ws = mr.open(tmp_path / "mill", spark)

    shuffle = ws.shuffle(tmp_path / "in", keys="v", partitions=MANY)

    assert shuffle.report.ran == MANY
    assert shuffle.rows == MANY * 500
    files = [name for _, _, names in os.walk(tmp_path / "mill" / "shuffle") for name in names]
    assert len(files) <= 3 * MANY + 3
    before = len(os.listdir("/proc/self/fd"))
    total = 0
    for partition in range(0, MANY, 50):
        batches = shuffle.batches(partition)
        for batch in batches:
            total += pc.sum(batch["v"]).as_py()
            assert len(os.listdir("/proc/self/fd")) < before + 16
    frame = spark.read.parquet(str(tmp_path / "in"))
    expected = frame.where(f"pmod(hash(v), {MANY}) % 50 = 0").agg({"v": "sum"}).collect()[0][0]
    assert total == expected
