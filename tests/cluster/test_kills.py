"""A driver killed at any point: the next application pays only for what was not finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.kit import all_values, values, write_files

import millrace as mr
from millrace.spark.session import start_session
from millrace.testing.fault_injection import armed

pytestmark = pytest.mark.spark
FILES = 6
APPLICATION = """
import sys, millrace as mr
from millrace.spark.session import start_session
spark = start_session(cores=1)
done = mr.open(sys.argv[1], spark).shuffle(sys.argv[2], keys="k", partitions=4)
print("finished", done.report.ran, done.report.reused, flush=True)
"""
ALL = all_values(FILES)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("millrace-kills", cores=2)
    yield session
    session.stop()


def indexes(workspace: Path) -> int:
    return len(list(workspace.glob("shuffle/*/*/*/*/index.bin")))


@pytest.mark.slow  # tests/cluster/test_dataset_kills.py kills a driver in the quick tests.
def test_a_run_killed_half_way_is_taken_over_by_the_next_application(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", FILES)
    mill = tmp_path / "mill"
    victim = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(mill), str(tmp_path / "in")],
        env=armed("shuffle.task.start", "sleep=0.5"),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    while indexes(mill) < 2:
        assert victim.poll() is None, "the application ended before it could be killed"
        time.sleep(0.05)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    finished = indexes(mill)
    assert 2 <= finished < FILES

    ws = mr.open(mill, spark)
    taken_over = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    assert (taken_over.report.ran, taken_over.report.reused) == (FILES - finished, finished)
    assert values(taken_over) == ALL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "finished"),
    [
        ("shuffle.driver.after_rely", 0),
        ("shuffle.driver.after_tasks", FILES),
        ("shuffle.driver.before_manifest", FILES),
        ("shuffle.driver.after_manifest", FILES),
    ],
)
def test_a_driver_killed_at_any_point_loses_no_finished_task(
    spark: SparkSession, tmp_path: Path, point: str, finished: int
) -> None:
    write_files(tmp_path / "in", FILES)
    mill = tmp_path / "mill"
    killed = subprocess.run(
        [sys.executable, "-c", APPLICATION, str(mill), str(tmp_path / "in")],
        env=armed(point),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]

    ws = mr.open(mill, spark)
    again = ws.shuffle(tmp_path / "in", keys="k", partitions=4)

    assert (again.report.ran, again.report.reused) == (FILES - finished, finished)
    assert values(again) == ALL
