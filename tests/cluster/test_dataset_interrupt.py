"""Ctrl-C in a driver that runs two stages: all of Spark's work ends, what was finished is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.testing.fault_injection import armed

pytestmark = pytest.mark.spark
FILES = 4
APPLICATION = """
import os, sys, threading, millrace as mr
from millrace.spark.session import start_session
spark = start_session(cores=2)
config = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=8_000,
    read_together_bytes_max=1,
)
ws = mr.open(sys.argv[1], spark, config=config)
query = ws.read_parquet(sys.argv[2]).join(ws.read_parquet(sys.argv[3]), on="k")
try:
    query.run()
except KeyboardInterrupt:
    left = [t.name for t in threading.enumerate() if t.name.startswith("millrace-stage")]
    print("interrupted", len(left), flush=True)
    del os.environ["MILLRACE_FAULT"]
    reports = query.run().stages
    print(*(f"{report.ran}+{report.reused}" for report in reports), flush=True)
    rows = query.to_arrow()
    print(rows.num_rows, sum(rows["v"].to_pylist()), sum(rows["w"].to_pylist()), flush=True)
"""


@pytest.mark.slow
def test_an_interrupted_join_is_cancelled_and_resumes(tmp_path: Path) -> None:
    for name, column in (("left", "v"), ("right", "w")):
        (tmp_path / name).mkdir()
        for number in range(FILES):
            values = range(number * 100, number * 100 + 100)
            pq.write_table(
                pa.table({"k": values, column: values}), tmp_path / name / f"{number}.parquet"
            )
    mill = tmp_path / "mill"
    application = subprocess.Popen(
        [
            sys.executable,
            "-c",
            APPLICATION,
            *map(str, (mill, tmp_path / "left", tmp_path / "right")),
        ],
        env=armed("shuffle.task.start", "sleep=0.5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(finished := list(mill.glob("shuffle/1/*/*/*/index.bin"))) < 2:
        assert application.poll() is None, "the application ended before it was interrupted"
        time.sleep(0.05)
    application.send_signal(signal.SIGINT)

    said, errors = application.communicate(timeout=240)

    lines = said.split("\n")
    assert lines[0] == "interrupted 0", errors[-3000:]
    ran_and_reused = [tuple(map(int, part.split("+"))) for part in lines[1].split()]
    for stage in (0, 1):
        ran, reused = ran_and_reused[stage]
        assert ran + reused == FILES
        assert reused >= sum(path.parts[-4] == str(stage) for path in finished)
    total = sum(range(FILES * 100))
    assert lines[2] == f"{FILES * 100} {total} {total}"
