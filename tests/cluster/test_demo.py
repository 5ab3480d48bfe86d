"""The demo tells its story, and its numbers add up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_a_killed_job_goes_on_and_pays_once(tmp_path: Path) -> None:
    millrace = str(Path(sys.executable).parent / "millrace")
    sizes = ["--orders", "120", "--call-ms", "30"]
    ran = subprocess.run(
        [millrace, "demo", "--folder", str(tmp_path / "demo"), *sizes],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = re.search(r"paid calls: (\d+) in all, (\d+) before the kill; (\d+) results", ran.stdout)
    assert said is not None, ran.stdout
    in_all, before, reused = map(int, said.groups())
    assert "rows in: 120" in ran.stdout
    assert before >= 60
    assert 0 < reused <= before
    doubt = re.search(r"in doubt: (\d+); paid for twice: (\d+)", ran.stdout)
    assert doubt is not None, ran.stdout
    in_doubt, twice = map(int, doubt.groups())
    assert in_all == 120 + twice
    assert twice <= in_doubt
    assert "nothing lost, nothing doubled" in ran.stdout
    page = re.search(r"the report: (\S+)", ran.stdout)
    assert page is not None
    assert "<svg" in Path(page[1]).read_text(encoding="utf-8")
