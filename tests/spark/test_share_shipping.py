"""Each Spark task gets its own share of a stage, beside its function or as a row."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.errors import UserError
from millrace.execute.task_runner import SharedWork, TaskTry, never_stop
from millrace.keys import partition_ids
from millrace.spark.shipping import function_shipping
from millrace.spark.spark_tasks import SparkTaskRunner
from millrace.storage.storage_options import StorageOptions, storage_options

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("task", pa.int64()), ("bytes", pa.int64()), ("secret", pa.string())])


def report(this: TaskTry, share: tuple[bytes, StorageOptions]) -> Iterator[pa.RecordBatch]:
    """What a task finds in its share."""
    data, options = share
    assert set(data) <= {this.number}
    row = {"task": this.number, "bytes": len(data), "secret": options.given().get("region")}
    yield pa.RecordBatch.from_pylist([row], SCHEMA)


@pytest.mark.parametrize("way", ["plain job", "function", "rows"])
@pytest.mark.parametrize("region", [None, "eu"])
def test_a_task_gets_its_own_share_with_its_options(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, region: str | None
) -> None:
    if way == "rows":
        monkeypatch.setattr(function_shipping, "SHARES_IN_FUNCTION_BYTES_MAX", 0)
    options = storage_options(None if region is None else {"region": region})
    shares = [(bytes([task]) * (1000 * task), options) for task in range(5)]
    work = SharedWork(report, shares, calls_users=way != "plain job")

    table = SparkTaskRunner(spark, mr.Config()).run(
        work, len(shares), SCHEMA, title="shares", watch=never_stop
    )

    assert table.sort_by("task").to_pylist() == [
        {"task": task, "bytes": 1000 * task, "secret": region} for task in range(5)
    ]


def fail(this: TaskTry, share: str) -> Iterator[pa.RecordBatch]:
    """A task that always fails, in words of ours."""
    raise UserError(f"share {share} cannot be read\n  found: try {this.failed_before + 1}")


@pytest.mark.parametrize("calls_users", [False, True])
def test_an_error_of_a_task_comes_back_as_it_is(spark: SparkSession, *, calls_users: bool) -> None:
    work = SharedWork(fail, ["s3"], calls_users=calls_users)

    with pytest.raises(UserError, match="share s3 cannot be read\n  found: try 3$"):
        SparkTaskRunner(spark, mr.Config()).run(work, 1, SCHEMA, title="x", watch=never_stop)


def wait(_: TaskTry, folder: str) -> Iterator[pa.RecordBatch]:
    """A task that has begun, and takes long."""
    Path(folder, "begun").touch()
    time.sleep(600)
    raise AssertionError


@pytest.mark.parametrize("calls_users", [False, True])
def test_tasks_that_are_no_longer_wanted_end(
    spark: SparkSession, tmp_path: Path, *, calls_users: bool
) -> None:
    work = SharedWork(wait, [str(tmp_path)] * 2, calls_users=calls_users)

    def watch() -> None:
        if (tmp_path / "begun").exists():
            raise KeyboardInterrupt

    runner = SparkTaskRunner(spark, mr.Config())
    with pytest.raises(KeyboardInterrupt):
        runner.run(work, 2, SCHEMA, title="too long", watch=watch)

    # Both slots are free again.
    shares = [(b"", storage_options(None))] * 2
    free = SharedWork(report, shares, calls_users=False)
    assert runner.run(free, 2, SCHEMA, title="after", watch=never_stop).num_rows == 2


@pytest.mark.parametrize("partitions", [1, 2, 7, 300])
def test_keys_of_shares_lead_to_each_partition_once(partitions: int) -> None:
    keys = function_shipping._keys_of(partitions)

    ids = partition_ids(pa.table({"place": pa.array(keys, pa.int64())}), "place", partitions)
    assert ids.to_pylist() == list(range(partitions))


def test_a_share_that_is_packed_is_the_same_and_smaller() -> None:
    share = [os.path.join("/data", f"part-{n:05}.parquet") for n in range(1000)]

    packed = function_shipping._pack(share)

    assert len(packed) < 5_000
    assert pickle.loads(function_shipping._unpacked(packed)) == share
