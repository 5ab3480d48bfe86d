"""A shuffle made by Spark tasks, from every kind of source, read back with no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.errors import DataLost, UnsupportedType, UserError
from millrace.ids import FIRST_ATTEMPT
from millrace.keys import HashPartitioner, partition_ids
from millrace.shuffle.writer import begin_next_attempt, write_map_output
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark


def orders(rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(rows) + seed * rows,
            "cust": random.integers(0, max(1, rows // 5), rows),
            "name": pa.array([f"näme-{i % 97}" if i % 7 else None for i in range(rows)]),
            "amount": random.random(rows),
        }
    )


def write_orders(folder: Path, files: int, rows: int = 1000) -> pa.Table:
    folder.mkdir(exist_ok=True)
    tables = [orders(rows, seed) for seed in range(files)]
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"f{number}.parquet", row_group_size=max(1, rows // 4))
    return pa.concat_tables(tables)


def everything(shuffle: mr.Shuffle) -> pa.Table:
    return pa.concat_tables(shuffle.read(p) for p in range(shuffle.partitions))


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.sort_by("id").equals(right.select(left.column_names).sort_by("id")))


def test_every_row_lies_in_the_partition_of_its_key_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = write_orders(tmp_path / "in", files=3)
    ws = mr.open(tmp_path / "mill", spark)

    shuffle = ws.shuffle(tmp_path / "in", keys="cust", partitions=7)

    assert same_rows(everything(shuffle), rows)
    assert [size.rows for size in shuffle.sizes] == [shuffle.read(p).num_rows for p in range(7)]
    for partition in range(7):
        ids = partition_ids(shuffle.read(partition), "cust", 7)
        assert set(ids.to_pylist()) <= {partition}
    assert shuffle.verify().ok
    assert shuffle.report.ran == 3


def test_partitions_are_the_ones_spark_itself_would_make(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_orders(tmp_path / "in", files=2)
    ws = mr.open(tmp_path / "mill", spark)
    shuffle = ws.shuffle(tmp_path / "in", keys=["name", "cust"], partitions=5)

    frame = spark.read.parquet(str(tmp_path / "in"))
    theirs = frame.selectExpr("pmod(hash(name, cust), 5) as p", "id").toArrow()

    for partition in range(5):
        expected = theirs.filter(pc.equal(theirs["p"], partition))["id"]
        assert sorted(shuffle.read(partition)["id"].to_pylist()) == sorted(expected.to_pylist())


def test_a_second_process_reads_it_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = write_orders(tmp_path / "in", files=2)
    done = mr.open(tmp_path / "mill", spark).shuffle(tmp_path / "in", keys="cust", partitions=4)
    code = (
        "import sys, millrace as mr\n"
        f"s = mr.open({str(tmp_path / 'mill')!r}).open_shuffle({done.query_id})\n"
        "print(sum(s.read(p).num_rows for p in range(s.partitions)), s.verify().ok)\n"
        "assert 'pyspark' not in sys.modules, 'pyspark was imported'\n"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert answer.stdout.split() == [str(rows.num_rows), "True"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow_stream", "csv", "json"])
def test_files_of_every_format_are_read_natively(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rows = pa.concat_tables([orders(500, 0), orders(500, 1)])
    folder = tmp_path / "in"
    folder.mkdir()
    for number, table in enumerate([orders(500, 0), orders(500, 1)]):
        path = str(folder / f"f{number}")
        match kind:
            case "parquet":
                pq.write_table(table, path + ".parquet")
            case "arrow":
                with pa.ipc.new_file(path + ".arrow", table.schema) as out:
                    out.write_table(table, max_chunksize=100)
            case "arrow_stream":
                with pa.ipc.new_stream(path + ".arrow", table.schema) as out:
                    out.write_table(table)
            case "csv":
                pa.csv.write_csv(table, path + ".csv")
            case _:
                table.to_pandas().to_json(path + ".json", orient="records", lines=True)

    shuffle = mr.open(tmp_path / "mill", spark).shuffle(folder, keys="cust", partitions=3)

    found = everything(shuffle).sort_by("id")
    assert found["id"].to_pylist() == rows.sort_by("id")["id"].to_pylist()
    assert found["name"].to_pylist() == rows.sort_by("id")["name"].to_pylist()
    assert np.allclose(found["amount"].to_numpy(), rows.sort_by("id")["amount"].to_numpy())


def test_a_dataframe_goes_through_mapinarrow_once(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "id", "id % 11 as k", "cast(id as string) s", "timestamp_micros(id) t"
    )
    shuffle = mr.open(tmp_path / "mill", spark).shuffle(frame, keys=["k"], partitions=4)

    found = everything(shuffle)
    assert sorted(found["id"].to_pylist()) == list(range(5000))
    assert shuffle.report.map_tasks == 3
    expected = frame.selectExpr("pmod(hash(k), 4) p", "id").toArrow()
    for partition in range(4):
        ids = expected.filter(pc.equal(expected["p"], partition))["id"].to_pylist()
        assert sorted(shuffle.read(partition)["id"].to_pylist()) == sorted(ids)


def test_an_empty_dataframe_gives_empty_partitions_with_a_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(0).selectExpr("id", "cast(id as string) s")
    shuffle = mr.open(tmp_path / "mill", spark).shuffle(frame, keys="id", partitions=2)

    assert shuffle.rows == 0
    assert shuffle.read(1).schema.names == ["id", "s"]


def test_range_round_robin_broadcast_and_custom_partitioners(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = write_orders(tmp_path / "in", files=2)
    ws = mr.open(tmp_path / "mill", spark)
    source = tmp_path / "in"

    given = ws.shuffle(source, keys="id", partitioner="range", bounds=[99, 999])
    assert [size.rows for size in given.sizes] == [100, 900, 1000]
    sampled = ws.shuffle(source, keys="id", partitions=4, partitioner="range")
    assert same_rows(everything(sampled), rows)
    tops = [pc.max(sampled.read(p)["id"]).as_py() for p in range(sampled.partitions)]
    assert tops == sorted(tops)
    assert min(size.rows for size in sampled.sizes) > 300
    even = ws.shuffle(source, partitions=4, partitioner="round_robin")
    assert [size.rows for size in even.sizes] == [500] * 4
    copies = ws.shuffle(source, partitions=2, partitioner="broadcast")
    assert [size.rows for size in copies.sizes] == [2000] * 2
    custom = ws.shuffle(
        source, partitions=2, partitioner=lambda batch: pc.bit_wise_and(batch["id"], 1)
    )
    assert {value % 2 for value in custom.read(1)["id"].to_pylist()} == {1}
    assert same_rows(everything(custom), rows)


def test_large_files_are_cut_by_row_groups_and_small_ones_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = write_orders(tmp_path / "in", files=1, rows=20_000)
    config = mr.Config().with_options(split_bytes_target=150_000)
    cut = mr.open(tmp_path / "a", spark, config=config).shuffle(
        tmp_path / "in", keys="cust", partitions=3
    )
    whole = mr.open(tmp_path / "b", spark).shuffle(tmp_path / "in", keys="cust", partitions=3)

    assert cut.report.map_tasks == 4
    assert whole.report.map_tasks == 1
    assert same_rows(everything(cut), rows)
    assert same_rows(everything(whole), rows)


def test_many_partitions_share_one_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = write_orders(tmp_path / "in", files=2)
    ws = mr.open(tmp_path / "mill", spark)
    shuffle = ws.shuffle(tmp_path / "in", keys="cust", partitions=300)

    attempt = tmp_path / "mill" / "shuffle" / str(shuffle.manifest.chosen[0].attempt)
    assert sorted(os.listdir(attempt)) == ["data.ipc", "index.bin", "index.json"]
    assert same_rows(everything(shuffle), rows)
    assert shuffle.verify().ok


def test_wrong_requests_are_refused_before_any_task_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_orders(tmp_path / "in", files=1)
    nested = pa.table({"k": [[1]], "v": [1]})
    pq.write_table(nested, tmp_path / "nested.parquet")
    ws = mr.open(tmp_path / "mill", spark)
    source = tmp_path / "in"

    with pytest.raises(UserError, match="cost"):
        ws.shuffle(source, keys="cost", partitions=2)
    with pytest.raises(UserError, match="partition"):
        ws.shuffle(source, keys="cust", partitions=0)
    with pytest.raises(UserError, match="partition"):
        ws.shuffle(source, keys="cust", partitions=-3)
    with pytest.raises(UserError, match="needs keys"):
        ws.shuffle(source, partitions=2)
    with pytest.raises(UserError, match="unknown partitioner\n  found: 'hsah'"):
        ws.shuffle(source, keys="cust", partitions=2, partitioner="hsah")
    with pytest.raises(UnsupportedType, match="list"):
        ws.shuffle(tmp_path / "nested.parquet", keys="k", partitions=2)
    with pytest.raises(UserError, match="no input files"):
        ws.shuffle(tmp_path / "nowhere", keys="cust", partitions=2)
    with pytest.raises(UserError, match="partitions= is missing"):
        ws.shuffle(spark.range(3), keys="id")
    with pytest.raises(UserError, match="several columns are named 'id'"):
        ws.shuffle(spark.sql("select 1 id, 2 id, 3 k"), keys="k", partitions=2)
    assert ws.runs() == []


def test_an_error_in_a_task_comes_back_as_its_own_kind(spark: SparkSession, tmp_path: Path) -> None:
    write_orders(tmp_path / "in", files=1)
    ws = mr.open(tmp_path / "mill", spark)

    with pytest.raises(UserError, match="partition") as caught:
        ws.shuffle(tmp_path / "in", partitions=2, partitioner=lambda batch: [9] * batch.num_rows)

    assert "org.apache.spark" not in str(caught.value)
    assert [run.query_id for run in ws.runs()] == [1]
    with pytest.raises(UserError, match="no finished stage"):
        ws.open_shuffle(1)


def test_a_lost_file_is_lost_and_not_empty(spark: SparkSession, tmp_path: Path) -> None:
    write_orders(tmp_path / "in", files=1)
    ws = mr.open(tmp_path / "mill", spark)
    shuffle = ws.shuffle(tmp_path / "in", keys="cust", partitions=2)
    victim = tmp_path / "mill" / "shuffle" / str(shuffle.manifest.chosen[0].attempt) / "data.ipc"
    victim.unlink()

    for partition in (0, 1):
        with pytest.raises(DataLost, match=r"data\.ipc is gone"):
            shuffle.read(partition)
    assert not shuffle.verify().ok
    again = ws.shuffle(tmp_path / "in", keys="cust", partitions=2)
    assert again.report.ran == 1
    assert again.verify().ok


def test_a_copy_of_a_task_that_finishes_later_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_orders(tmp_path / "in", files=1)
    ws = mr.open(tmp_path / "mill", spark)
    shuffle = ws.shuffle(tmp_path / "in", keys="cust", partitions=2)
    before = everything(shuffle)
    chosen = shuffle.manifest.chosen[0].attempt
    late = begin_next_attempt(runtime_of(ws).store, chosen.task, FIRST_ATTEMPT)

    write_map_output(
        runtime_of(ws).store,
        late,
        orders(10, seed=5).to_batches(),
        schema=shuffle.schema,
        partitioner=HashPartitioner("cust", 2),
        config=ws.config,
        now_ms=lambda: 1,
    )

    assert late.attempt == chosen.attempt + 1
    assert everything(ws.open_shuffle(shuffle.query_id)).equals(before)
