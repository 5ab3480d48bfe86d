"""Ctrl-C in the driver: Spark's work is cancelled, and what was finished is kept."""

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
FILES = 6
APPLICATION = """
import os, sys, millrace as mr
from millrace.spark.session import start_session
spark = start_session(cores=1)
ws = mr.open(sys.argv[1], spark)
try:
    ws.shuffle(sys.argv[2], keys="k", partitions=4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    del os.environ["MILLRACE_FAULT"]
    again = ws.shuffle(sys.argv[2], keys="k", partitions=4)
    print(again.report.reused, again.rows, again.verify().ok, flush=True)
"""


@pytest.mark.slow  # The test command interrupts a join, which has shuffles.
def test_an_interrupted_shuffle_is_cancelled_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"k": range(100)}), tmp_path / "in" / f"{number}.parquet")
    mill = tmp_path / "mill"
    application = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, str(mill), str(tmp_path / "in")],
        env=armed("shuffle.task.start", "sleep=0.5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(mill.glob("shuffle/*/*/*/*/index.bin"))) < 2:
        assert application.poll() is None, "the application ended before it was interrupted"
        time.sleep(0.05)
    application.send_signal(signal.SIGINT)

    said, errors = application.communicate(timeout=240)

    lines = said.split("\n")
    assert lines[0] == "interrupted", errors[-3000:]
    reused, rows, ok = lines[1].split()
    assert int(reused) >= 2
    assert (rows, ok) == (str(FILES * 100), "True")
