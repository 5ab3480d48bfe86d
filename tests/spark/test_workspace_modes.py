"""A workspace with everything in it, made by Spark under an open umask: nothing of it is open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "full_workspace.py"
pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("mode", ["0700", "2770"])
def test_all_that_spark_makes_in_a_workspace_has_its_mode_and_results_follow_the_umask(
    tmp_path: Path, mode: str
) -> None:
    asked = [] if mode == "0700" else [mode]
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "000", str(tmp_path), *asked],
        capture_output=True,
        text=True,
        check=True,
    )

    lines = {tuple(line.split("\t")) for line in made.stdout.splitlines() if "\t" in line}
    folders, files = int(mode, 8), int(mode, 8) & 0o666
    found = {"mill": 0, "host": 0, "out": 0, "result": 0}
    for kind, bits, path in lines:
        top = path.split("/")[0]
        found[top] += 1
        if Path(path).name == "token":
            wanted = 0o600
        elif top in ("mill", "host"):
            wanted = folders if kind == "folder" else files
        else:
            wanted = 0o777 if kind == "folder" else 0o666
        assert int(bits, 8) == wanted, (kind, bits, path)
    assert found["mill"] > 50
    assert found["host"] > 50
    assert min(found.values()) > 1
