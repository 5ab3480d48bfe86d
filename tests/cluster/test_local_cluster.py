"""Executors that fail, stall or are killed: the shuffle is right and each map task counts once."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.kit import all_values, values, write_files

import millrace as mr
from millrace.faults import ONCE_VARIABLE, VARIABLE

pytestmark = pytest.mark.spark
Cluster = Callable[..., AbstractContextManager[SparkSession]]
FILES = 8
ALL = all_values(FILES)


def attempts(workspace: Path) -> list[Path]:
    return sorted(workspace.glob("shuffle/*/*/*/*/"))


def assert_right(shuffle: mr.Shuffle, workspace: Path) -> None:
    """Every row once, one attempt per map task, and nothing unfinished left."""
    assert values(shuffle) == ALL
    assert [choice.map_task for choice in shuffle.manifest.chosen] == list(range(FILES))
    assert all((attempt / "index.bin").exists() for attempt in attempts(workspace))
    assert shuffle.verify().ok


def test_a_task_that_dies_is_tried_again_under_a_new_number_and_swept(
    cluster: Cluster, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "in", FILES)
    env = {
        VARIABLE: "shuffle.write.before_index:kill",
        ONCE_VARIABLE: str(tmp_path / "killed-once"),
    }
    with cluster(env=env) as spark:
        shuffle = mr.open(tmp_path / "mill", spark).shuffle(source, keys="k", partitions=4)

        assert (tmp_path / "killed-once").exists()
        assert_right(shuffle, tmp_path / "mill")
        assert {choice.attempt.attempt for choice in shuffle.manifest.chosen} == {1, 2}
        assert len(attempts(tmp_path / "mill")) == FILES


@pytest.mark.slow
def test_a_speculative_copy_wins_and_the_loser_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "in", FILES)
    env = {
        VARIABLE: "shuffle.write.before_index:sleep=25",
        ONCE_VARIABLE: str(tmp_path / "slow-once"),
    }
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with cluster(conf=conf, env=env) as spark:
        ws = mr.open(tmp_path / "mill", spark)
        shuffle = ws.shuffle(source, keys="k", partitions=4)

        assert (tmp_path / "slow-once").exists()
        assert_right(shuffle, tmp_path / "mill")
        before = shuffle.manifest
        assert ws.open_shuffle(shuffle.query_id).manifest == before


@pytest.mark.slow
def test_a_killed_executor_costs_only_its_unfinished_work(cluster: Cluster, tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", FILES)
    mill = tmp_path / "mill"
    with cluster(env={VARIABLE: "shuffle.task.start:sleep=0.7"}) as spark:

        def kill_one() -> None:
            while len(list(mill.glob("shuffle/*/*/*/*/index.bin"))) < 2:
                time.sleep(0.05)
            found = subprocess.run(
                ["pgrep", "-f", "CoarseGrainedExecutorBackend"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
            killed.set()

        killed = threading.Event()
        threading.Thread(target=kill_one, daemon=True).start()
        shuffle = mr.open(mill, spark).shuffle(source, keys="k", partitions=4)

        assert killed.is_set()
        assert_right(shuffle, mill)
