"""Finished map tasks are used again by whoever needs the same work, and by nobody else."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.errors import Corrupt

pytestmark = pytest.mark.spark
FILES = 6


def write_file(path: Path, first: int, rows: int = 400) -> None:
    path.parent.mkdir(exist_ok=True)
    values = pa.array(range(first, first + rows))
    pq.write_table(pa.table({"k": pc.bit_wise_and(values, 63), "v": values}), path)


def write_files(folder: Path, files: int = FILES) -> None:
    for number in range(files):
        write_file(folder / f"f{number}.parquet", 1000 * number)


def values(shuffle: mr.Shuffle) -> list[int]:
    return sorted(v for p in range(shuffle.partitions) for v in shuffle.read(p)["v"].to_pylist())


def expected(*firsts: int, rows: int = 400) -> list[int]:
    return sorted(value for first in firsts for value in range(first, first + rows))


ALL = expected(*range(0, 1000 * FILES, 1000))


def test_the_same_shuffle_again_runs_no_map_task(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    ws = mr.open(tmp_path / "mill", spark)
    first = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    second = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    assert (first.report.ran, first.report.reused) == (FILES, 0)
    assert set(first.report.reasons.values()) == {"not done before"}
    assert (second.report.ran, second.report.reused) == (0, FILES)
    assert second.report.reasons == {}
    assert second.query_id != first.query_id
    assert values(second) == ALL
    assert {choice.attempt.task.query_id for choice in second.manifest.chosen} == {first.query_id}


def test_one_changed_file_runs_its_map_task_alone_and_the_report_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in")
    ws = mr.open(tmp_path / "mill", spark)
    ws.shuffle(tmp_path / "in", keys="k", partitions=4)
    write_file(tmp_path / "in" / "f2.parquet", 90_000)

    again = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    assert (again.report.ran, again.report.reused) == (1, FILES - 1)
    assert list(again.report.reasons) == [2]
    assert "f2.parquet changed" in again.report.reasons[2]
    assert values(again) == expected(0, 1000, 90_000, 3000, 4000, 5000)


def test_a_file_added_in_front_shifts_nobody_and_a_removed_one_costs_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in")
    ws = mr.open(tmp_path / "mill", spark)
    ws.shuffle(tmp_path / "in", keys="k", partitions=4)
    write_file(tmp_path / "in" / "a-first.parquet", 70_000)

    more = ws.shuffle(tmp_path / "in", keys="k", partitions=4)
    (tmp_path / "in" / "f0.parquet").unlink()
    fewer = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    assert (more.report.ran, more.report.reused) == (1, FILES)
    assert values(more) == sorted(ALL + expected(70_000))
    assert (fewer.report.ran, fewer.report.reused) == (0, FILES)
    assert values(fewer) == expected(70_000, 1000, 2000, 3000, 4000, 5000)


def test_another_count_key_or_partitioner_is_other_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", files=1)
    ws = mr.open(tmp_path / "mill", spark)
    ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    count = ws.shuffle(tmp_path / "in", keys="k", partitions=5)
    key = ws.shuffle(tmp_path / "in", keys="v", partitions=4)
    kind = ws.shuffle(tmp_path / "in", partitions=4, partitioner="round_robin")

    assert [s.report.ran for s in (count, key, kind)] == [1, 1, 1]
    assert "partitions changed from 4 to 5" in count.report.reasons[0]


def test_an_edit_of_the_same_size_and_time_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "f.parquet", 0)
    path = tmp_path / "in" / "f.parquet"
    ws = mr.open(tmp_path / "mill", spark)
    ws.shuffle(path, keys="k", partitions=2)
    before = path.stat()
    write_file(path, 100_000)
    with path.open("r+b") as file:  # The same size, whatever Parquet made of other numbers.
        file.truncate(before.st_size)
    write_file(path, 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    again = ws.shuffle(path, keys="k", partitions=2)

    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert again.report.ran == 1
    assert values(again) == expected(1)


def test_by_checksum_a_copy_with_other_times_is_the_same_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", files=2)
    ws = mr.open(tmp_path / "mill", spark)
    ws.shuffle(tmp_path / "in", keys="k", partitions=2, checksum=True)
    data = (tmp_path / "in" / "f0.parquet").read_bytes()
    (tmp_path / "in" / "f0.parquet").write_bytes(data)
    os.utime(tmp_path / "in" / "f1.parquet")

    same = ws.shuffle(tmp_path / "in", keys="k", partitions=2, checksum=True)
    write_file(tmp_path / "in" / "f1.parquet", 5)
    other = ws.shuffle(tmp_path / "in", keys="k", partitions=2, checksum=True)

    assert (same.report.ran, same.report.reused) == (0, 2)
    assert (other.report.ran, other.report.reused) == (1, 1)


def test_a_custom_function_is_recognised_by_its_code_or_its_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", files=1)
    ws = mr.open(tmp_path / "mill", spark)

    def run(bit: int, version: str | None = None, extra: object = None) -> mr.Shuffle:
        return ws.shuffle(
            tmp_path / "in",
            partitions=2,
            partitioner=lambda batch: (
                pc.bit_wise_and(pc.shift_right(batch["v"], bit), 1)
                if not isinstance(extra, np.ndarray)
                else extra
            ),
            version=version,
        )

    assert [run(0).report.ran, run(0).report.ran, run(1).report.ran] == [1, 0, 1]
    assert [run(0, "a").report.ran, run(1, "a").report.ran, run(1, "b").report.ran] == [1, 0, 1]
    arrays = [run(0, extra=np.full(400, number, int)).report.ran for number in (0, 0, 1)]
    assert arrays == [1, 0, 1]
    doubtful = [run(0, extra=random.Random(1)).report for _ in range(2)]  # noqa: S311 - not drawn from
    assert [report.ran for report in doubtful] == [1, 1]
    assert "random.Random, which has no stable form" in doubtful[0].reasons[0]


def test_sampled_bounds_are_kept_when_a_file_changes(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    ws = mr.open(tmp_path / "mill", spark)
    first = ws.shuffle(tmp_path / "in", keys="v", partitions=3, partitioner="range")
    write_file(tmp_path / "in" / "f0.parquet", 900_000)

    again = ws.shuffle(tmp_path / "in", keys="v", partitions=3, partitioner="range")
    anew = ws.shuffle(tmp_path / "in", keys="v", partitions=3, partitioner="range", reuse=False)

    assert again.partitioner == first.partitioner
    assert (again.report.ran, again.report.reused) == (1, FILES - 1)
    assert anew.partitioner != first.partitioner
    assert anew.report.ran == FILES
    assert values(again) == values(anew)


def test_a_corrupt_output_is_caught_and_made_again_when_verified(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", files=2)
    ws = mr.open(tmp_path / "mill", spark)
    first = ws.shuffle(tmp_path / "in", keys="k", partitions=2)
    victim = tmp_path / "mill" / "shuffle" / str(first.manifest.chosen[1].attempt) / "data.ipc"
    data = bytearray(victim.read_bytes())
    data[len(data) // 4] ^= 1  # In the first half, which is partition 0.
    victim.write_bytes(data)

    trusting = ws.shuffle(tmp_path / "in", keys="k", partitions=2)
    with pytest.raises(Corrupt, match="reuse='verified'"):
        trusting.read(0)
    mended = ws.shuffle(tmp_path / "in", keys="k", partitions=2, reuse="verified")

    assert (mended.report.ran, mended.report.reused) == (1, 1)
    assert values(mended) == expected(0, 1000)


def test_two_identical_shuffles_at_once_both_end_right(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in")
    done: list[mr.Shuffle] = []

    def run() -> None:
        ws = mr.open(tmp_path / "mill", spark)
        done.append(ws.shuffle(tmp_path / "in", keys="k", partitions=4))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [values(shuffle) for shuffle in done] == [ALL, ALL]
    assert done[0].query_id != done[1].query_id
    assert all(shuffle.verify().ok for shuffle in done)
