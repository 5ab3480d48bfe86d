"""Writes with `format("millrace")` on a Spark that starts copies of slow tasks: one copy counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.cluster.test_job_speculation import COPIES

import millrace as mr
from millrace.spark import register

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Standalone = Callable[[Sequence[Mapping[str, str]]], AbstractContextManager[str]]
Connected = Callable[..., AbstractContextManager[SparkSession]]
ROWS = 1000


def waits_for_its_copy(
    folder: str,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The first to run partition 1 hands its rows on when another one has done so."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        first, second = (os.path.join(folder, name) for name in ("first", "second"))
        is_first = False
        if context.partitionId() == 1:
            try:
                os.close(os.open(first, os.O_CREAT | os.O_EXCL))
                is_first = True
            except FileExistsError:
                pass
        end = time.monotonic() + 300
        while is_first and not os.path.exists(second):
            assert time.monotonic() < end, "no copy was started"
            time.sleep(0.02)
        yield from batches
        if context.partitionId() == 1 and not is_first:
            os.close(os.open(second, os.O_CREAT))

    return run


def frame_of(rows: DataFrame, folder: Path) -> DataFrame:
    folder.mkdir()
    return rows.mapInArrow(waits_for_its_copy(str(folder)), "id long")


def test_copies_of_tasks_leave_one_copy_of_their_rows(
    standalone: Standalone, connected: Connected, tmp_path: Path
) -> None:
    # Spark starts a copy on another host than the task's own.
    hosts = [
        {"SPARK_LOCAL_IP": f"127.0.0.{n}", "SPARK_WORKER_DIR": str(tmp_path / f"work-{n}")}
        for n in (1, 2)
    ]
    path, files = str(tmp_path / "mill"), str(tmp_path / "files")
    with standalone(hosts) as master, connected(master, conf=COPIES) as spark:
        register(spark)
        spark.range(0, ROWS, 1, 2).write.parquet(files)

        rows = frame_of(spark.range(0, ROWS, 1, 2).toDF("id"), tmp_path / "batch")
        rows.write.format("millrace").mode("append").option("journal", "batch").save(path)

        read = spark.readStream.schema("id long").parquet(files)
        stream = frame_of(read, tmp_path / "stream").writeStream.format("millrace")
        stream = stream.option("path", path).option("journal", "stream")
        stream = stream.option("checkpointLocation", str(tmp_path / "log"))
        stream.trigger(availableNow=True).start().awaitTermination()
    with mr.open(path) as ws:
        for name in ("batch", "stream"):
            assert os.path.exists(tmp_path / name / "second"), "a copy was started"
            found = ws.journals.read(name, 0).rows()["id"].to_pylist()
            assert sorted(found) == list(range(ROWS)), name
