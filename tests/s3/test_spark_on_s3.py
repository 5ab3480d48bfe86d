"""Shuffles and datasets on Spark over a bucket: the same answers as over a folder."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.cluster.kit import all_values, values, write_files
from tests.s3.s3_kit import MAKES, SECRET, Server, keys, on_all, slowly_on_all
from tests.stores.servers import GOOGLE_SERVER, StoreServer, fetch

import millrace as mr
from millrace.errors import UserError
from millrace.spark.session import start_session
from millrace.storage.objects.object_store import ObjectStore
from millrace.testing.fault_injection import armed
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
FILES = 6
APPLICATION = """
import sys, millrace as mr
from millrace.spark.session import start_session
spark = start_session(cores=1)
mr.open(sys.argv[1], spark).shuffle(sys.argv[2], keys="k", partitions=4)
"""


@pytest.fixture(scope="module")
def spark(server: Server, makes: Callable[[str], StoreServer]) -> Iterator[SparkSession]:
    del server  # Spark's workers are to have credentials of all servers in their environment.
    fetch()
    for make in MAKES[1:]:
        if make != "google" or GOOGLE_SERVER.is_dir():
            makes(make)
    session = start_session("millrace-s3", cores=2)
    yield session
    session.stop()


def indexes(bucket: ObjectStore) -> set[str]:
    return {name for name in keys(bucket) if name.endswith("/index.bin")}


def rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=str)


@slowly_on_all
def test_a_shuffle_and_a_join_equal_those_over_a_folder(
    spark: SparkSession, url: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    files = write_files(tmp_path / "in", FILES)
    folder, ws = mr.open(tmp_path / "mill", spark), mr.open(url, spark)

    here, there = (w.shuffle(files, keys="k", partitions=4) for w in (folder, ws))
    assert [there.read(p).to_pylist() for p in range(4)] == [
        here.read(p).to_pylist() for p in range(4)
    ]
    assert there.to_spark().count() == len(all_values(FILES))
    again = ws.open_shuffle(there.query_id)
    assert values(again) == all_values(FILES)
    assert again.verify().ok

    def top(place: mr.Workspace) -> mr.Dataset:
        # Small limits, so that there are exchanges.
        orders = place.read_parquet(files)
        sums = orders.repartition(3, "k").group_by("k").agg(total="sum(v)", n="count(*)")
        return orders.join(sums, on="k").group_by("n").agg(most="max(total)", rows="count(*)")

    assert rows(top(ws).to_arrow()) == rows(top(folder).to_arrow())
    reused = ws.shuffle(files, keys="k", partitions=4).report
    assert (reused.ran, reused.reused) == (0, FILES)

    shipped = pickle.dumps(runtime_of(ws).shuffle_workspace().folders)
    everything = b"".join(bucket.read(name) or b"" for name in keys(bucket))
    assert SECRET.encode() not in shipped + everything


@on_all
@pytest.mark.slow  # tests/cluster kills it over a folder in the test command.
def test_a_run_killed_half_way_is_taken_over_by_the_next_application(
    spark: SparkSession, url: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    files = write_files(tmp_path / "in", FILES)
    victim = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, url, str(files)],
        env=armed("shuffle.task.start", "sleep=0.5"),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(indexes(bucket)) < 2:
        assert victim.poll() is None, "the application ended before it could be killed"
        time.sleep(0.05)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    finished = len(indexes(bucket))
    assert finished < FILES

    done = mr.open(url, spark).shuffle(files, keys="k", partitions=4)

    # Python workers outlive the application by a moment, and may finish what they had begun.
    taken_over = [c for c in done.manifest.chosen if c.attempt.task.query_id != done.query_id]
    assert len(taken_over) == done.report.reused >= finished
    assert done.report.ran + done.report.reused == FILES
    assert values(done) == all_values(FILES)


def test_what_is_lost_between_two_stages_is_made_again(
    spark: SparkSession, url: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    files = write_files(tmp_path / "in", 2)
    ws = mr.open(url, spark)
    counts = ws.read_parquet(files).repartition(3, "k").group_by("k").agg(n="count(*)")
    first = rows(counts.to_arrow())
    for name in sorted(keys(bucket)):
        if name.endswith("/data.ipc"):
            bucket.remove_file(name)
            break

    assert rows(counts.to_arrow()) == first


@slowly_on_all
def test_rows_in_memory_and_input_files_are_read_from_a_bucket(
    spark: SparkSession, url: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    for number, folder in enumerate(("a", "b")):
        path = tmp_path / f"{folder}.parquet"
        pq.write_table(pa.table({"x": [number, number + 10]}), path)
        bucket.calls.upload(str(path), f"given/part={folder}/rows.parquet")
    bucket.calls.put("lines/one.csv", b"x,y\n1,u\n2,v\n")

    with mr.open(f"{url}/mill", spark) as ws:
        rows = ws.from_arrow(pa.table({"x": [0, 11], "name": ["zero", "eleven"]}))
        again = ws.from_arrow(pa.table({"x": [0, 11], "name": ["zero", "eleven"]}))
        assert rows.columns == again.columns
        files = ws.read_parquet(f"{url}/given")
        joined = files.join(rows, on="x").sort("x").to_arrow()
        assert joined.to_pydict() == {
            "x": [0, 11],
            "part": ["a", "b"],
            "name": ["zero", "eleven"],
        }
        assert ws.read_csv(f"{url}/lines/*.csv").count() == 2
        assert ws.read_parquet(f"{url}/given/part=a/rows.parquet").columns == ["x"]
        with pytest.raises(UserError, match="no input files"):
            ws.read_parquet(f"{url}/nothing")
        assert ws.verify().problems == ()
    assert len([name for name in bucket.names("mill/inputs") if name.endswith(".arrow")]) == 1


@on_all
@pytest.mark.slow  # tests/spark streams from a folder in the test command.
def test_a_stream_of_spark_reads_journals_of_a_bucket_and_goes_on(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    def batch() -> list[int]:
        seen: list[int] = []
        query = (
            spark.readStream.format("millrace")
            .option("path", url)
            .option("journal", "a")
            .option("name", "stream")
            .load()
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda rows, _: seen.extend(row.x for row in rows.select("x").collect()))
            .start()
        )
        assert query.awaitTermination(120)
        return sorted(seen)

    mr.register(spark)
    with mr.open(url, spark) as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
        ws.journals.append("a", pa.table({"x": [1, 2]}))
        assert batch() == [1, 2]
        ws.journals.append("a", pa.table({"x": list(range(3, 50_000))}))
        assert batch() == list(range(3, 50_000))
