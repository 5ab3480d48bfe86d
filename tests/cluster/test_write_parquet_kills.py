"""Parquet that is written while drivers and tasks are killed: whole or not at all.

`tests/unit/execute/results/test_publish_folder.py` kills writers at each point of moving a result
into place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cluster.kit import all_values, write_files

from millrace.testing.fault_injection import armed

pytestmark = pytest.mark.spark
FILES = 3
APPLICATION = """
import os, sys, millrace as mr
from millrace.spark.session import start_session
ws = mr.open(sys.argv[1], start_session(cores=2))
for mode in sys.argv[4:]:
    rows = ws.read_parquet(sys.argv[2]).select("v")
    written = rows.write_parquet(sys.argv[3], mode=mode)
    files = sorted(file.inode() for file in os.scandir(sys.argv[3]) if file.name[0] == "p")
    print(mode, written.files, written.rows, *files, flush=True)
"""


def run(tmp_path: Path, *modes: str, env: dict[str, str] | None = None) -> tuple[int, list[str]]:
    paths = [str(tmp_path / name) for name in ("mill", "in", "out")]
    done = subprocess.run(
        [sys.executable, "-c", APPLICATION, *paths, *modes],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def found(tmp_path: Path) -> list[int]:
    """The values of a whole result; it may have no other files than those that Spark has too."""
    names = sorted(os.listdir(tmp_path / "out"))
    assert names == ["_SUCCESS", *(f"part-{n:05}.parquet" for n in range(len(names) - 1))]
    return sorted(pq.read_table(tmp_path / "out")["v"].to_pylist())


def inodes(folder: Path) -> list[int]:
    return sorted(file.stat().st_ino for file in folder.iterdir())


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path) if name.startswith(".out.millrace-"))


@pytest.mark.slow
def test_a_killed_driver_leaves_files_for_the_next_and_a_killed_task_no_file_twice(
    tmp_path: Path,
) -> None:
    write_files(tmp_path / "in", FILES)

    code, _ = run(tmp_path, "error", env=armed("results.driver.after_tasks"))

    assert code == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (left,) = leftovers(tmp_path)
    finished = inodes(tmp_path / left / "tasks")
    assert len(finished) == FILES

    killed = tmp_path / "killed"
    env = armed("results.task.after_write", once=killed)
    code, lines = run(tmp_path, "error", "overwrite", env=env)

    assert code == 0
    assert killed.exists()  # A worker was killed once; Spark ran its task again.
    written = f"{FILES} {len(all_values(FILES))}"
    first, second = lines
    # The next run publishes the files of the killed one, and makes none of them again.
    assert first == f"error {written} {' '.join(map(str, finished))}"
    assert second.startswith(f"overwrite {written} ")
    assert first.split()[3:] != second.split()[3:]
    assert found(tmp_path) == all_values(FILES)
    assert leftovers(tmp_path) == []
