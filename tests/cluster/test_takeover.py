"""An owner that dies or hangs is replaced by another process, and fenced when it wakes up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr

SCHEMA = pa.schema([("x", pa.int64())])
CONFIG = mr.Config(owner_lease="2s")
OWNER = """
import sys, time
import pyarrow as pa
import millrace as mr
ws = mr.open(sys.argv[1], ledger="files", config=mr.Config(owner_lease="2s"))
ws.journals.create("a", pa.schema([("x", pa.int64())]))
ws.journals.append("a", pa.table({"x": [0]}))
print("ready", flush=True)
sys.stdin.readline()
try:
    ws.journals.append("a", pa.table({"x": [100]}))
    print("appended", ws.journals.read("a", 0).rows()["x"].to_pylist(), flush=True)
except mr.MillraceError as error:
    print("refused", type(error).__name__, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_process_takes_over_and_nothing_is_lost_or_repeated(
    tmp_path: Path, how: signal.Signals
) -> None:
    path = str(tmp_path / "mill")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "ready\n"
        with mr.open(path, config=CONFIG) as ws:
            ws.journals.append("a", pa.table({"x": [1]}))
            owner.send_signal(how)
            in_doubt, value = [], 2
            end = time.monotonic() + 60
            while value < 10:
                assert time.monotonic() < end, "nobody took over"
                try:
                    ws.journals.append("a", pa.table({"x": [value]}))
                except mr.OwnerUnreachable as error:
                    told_why = str(error)
                    in_doubt.append(value)
                    assert "may have been carried out" in told_why
                value += 1

            if how == signal.SIGSTOP:
                owner.send_signal(signal.SIGCONT)
                owner.stdin.write("\n")
                owner.stdin.flush()
                told = owner.stdout.readline()
                # It found the new owner, and wrote there.
                assert told.startswith("appended [0, 1"), told
            rows = ws.journals.read("a", 0).rows()["x"].to_pylist()

        assert len(rows) == len(set(rows)), "a row was written twice"
        expected = {0, 1, *range(2, 10)} - set(in_doubt)
        assert expected <= set(rows), "an acknowledged row is lost"
        assert len(in_doubt) <= 1
    finally:
        owner.kill()
        owner.wait(30)
        owner.stdin.close()
        owner.stdout.close()
