"""A query that is half native and half on Spark, killed between: what was finished is reused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.spark.session import start_session
from millrace.testing.fault_injection import armed

pytestmark = pytest.mark.spark
DESCRIBED = """
import sys, millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.plan.builders.build_on_spark import on_spark
from millrace.plan.relation import relation_of
from millrace.spark.session import start_session
from millrace.testing.fault_injection import armed
def described(ws, folder):
    counts = ws.read_parquet(folder).group_by("k").agg(n="count(*)")
    text = "SELECT k, n, soundex(concat('k', k)) AS s FROM input_0"
    plan = on_spark(counts._runner.analyzer, [("input_0", plan_of(counts))], text, "a test")
    return Dataset(relation_of(plan), counts._runner).filter("n > 1").agg(total="sum(n)")
"""
ONE_QUERY = f"""{DESCRIBED}
described(mr.open(sys.argv[2], start_session(cores=2)), sys.argv[1]).run()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"k": [number, 7, 8]}), folder / f"{number}.parquet")
    return folder


@pytest.mark.slow  # tests/cluster/test_dataset_kills.py is quick.
def test_after_a_kill_only_what_was_not_finished_runs_again(tmp_path: Path, folder: Path) -> None:
    mill = tmp_path / "mill"
    killed = subprocess.run(
        [sys.executable, "-c", ONE_QUERY, str(folder), str(mill)],
        env=armed("on_spark.driver.after_inputs", "kill"),
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]

    described: dict[str, object] = {}
    exec(DESCRIBED, described)  # noqa: S102 - the text above
    spark = start_session("millrace-kills", cores=2)
    try:
        query = described["described"](mr.open(mill, spark), str(folder))  # type: ignore[operator]
        first = {stage.name: stage.ran for stage in query.run().stages}
        second = {stage.name: stage.ran for stage in query.run().stages}
        assert query.to_arrow().to_pylist() == [{"total": 6}]
    finally:
        spark.stop()
    by_name = {name: ran for name, ran in first.items() if name.startswith("input_0")}
    assert set(by_name.values()) == {0}  # Finished before the kill.
    assert first["on Spark 0"] > 0
    assert set(second.values()) == {0}
