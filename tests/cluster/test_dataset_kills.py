"""A join killed between its stages is resumed by the next application."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.testing.faults import armed

pytestmark = pytest.mark.spark
APPLICATION = """
import sys, millrace as mr
from millrace.spark.session import start_session
config = mr.Config().with_options(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=10_000
)
ws = mr.open(sys.argv[1], start_session(cores=2), config=config)
left, right = ws.read_parquet(sys.argv[2]), ws.read_parquet(sys.argv[3])
query = left.join(right, on="k").group_by("g").agg(total="sum(v)", n="count(*)")
for report in query.run():
    print(report.ran, report.reused, flush=True)
for row in sorted(query.collect().to_pylist(), key=lambda row: row["g"]):
    print(row["g"], row["total"], row["n"], flush=True)
"""


def run(tmp_path: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    arguments = [str(tmp_path / name) for name in ("mill", "left", "right")]
    return subprocess.run(
        [sys.executable, "-c", APPLICATION, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_killed_join_runs_no_finished_task_again(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    left = pa.table({"k": random.integers(0, 500, 4000), "v": random.integers(0, 9, 4000)})
    right = pa.table({"k": np.arange(500), "g": np.arange(500) % 5})
    for name, table in (("left", left), ("right", right)):
        (tmp_path / name).mkdir()
        for number in range(3):
            each = table.num_rows // 3 + 1
            part = table.slice(number * each, each)
            pq.write_table(part, tmp_path / name / f"{number}.parquet")
    joined = left.join(right, "k")
    expected = joined.group_by("g").aggregate([("v", "sum"), ("v", "count")]).sort_by("g")

    killed = run(tmp_path, armed("shuffle.driver.after_tasks"))
    resumed = run(tmp_path)

    assert killed.returncode == -signal.SIGKILL
    lines = [line.split() for line in resumed.stdout.splitlines()]
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert lines[0] == ["0", "3"]  # The first map stage had finished when the driver died.
    assert lines[-5:] == [
        [str(row["g"]), str(row["v_sum"]), str(row["v_count"])] for row in expected.to_pylist()
    ]
