"""Every example runs by itself, as its reader would run it. Here, and so once, not in each mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LINES_MAX = 40
TIMEOUT_S = 600
KEPT = "SPARK_SUBMIT_OPTS"
"""Java options, which decide how fast it is and nothing else."""


def test_there_are_examples_and_they_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES}

    assert len(lengths) >= 2
    assert {name: count for name, count in lengths.items() if count >= LINES_MAX} == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_by_itself(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={
            name: value
            for name, value in os.environ.items()
            if name == KEPT or not name.startswith("SPARK_")
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert "rows" in done.stdout
    assert os.listdir(tmp_path) == [], "an example leaves nothing where it was run"
