"""Tasks of Spark log what their driver shows, with the ids of what they work on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PROGRAM = """
import sys
import millrace as mr
mr.show_logs("DEBUG", format="json")
ws = mr.open(sys.argv[1], config=mr.Config(one_task_bytes_max=1, read_together_bytes_max=1))
assert ws.read_parquet(sys.argv[2]).group_by("id").agg(n="count(*)").to_arrow().num_rows == 4
ws.stop()
"""


@pytest.mark.slow
@pytest.mark.classic_only
def test_lines_of_executors_name_run_stage_and_task(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": [1, 2, 3, 4]}), tmp_path / "orders" / f"{number}.parquet")

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "mill"), str(tmp_path / "orders")],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )

    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith('{"time"')]
    of_tasks = [line for line in lines if "the task has run" in line["message"]]
    (driver,) = {line["pid"] for line in lines if "query 1 started" in line["message"]}
    assert {(line["run"], line["stage"]) for line in of_tasks} >= {(1, 0), (1, 1)}
    assert {line["task"] for line in of_tasks if line["stage"] == 0} == {0, 1}
    assert driver not in {line["pid"] for line in of_tasks}
