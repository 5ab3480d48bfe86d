"""The demo tells its story, and its numbers add up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def number(pattern: str, text: str) -> int:
    """The one number that a line shows."""
    shown = re.findall(pattern, text)
    assert len(shown) == 1, text
    return int(shown[0].replace(",", ""))


def test_a_killed_job_goes_on_and_pays_once(tmp_path: Path) -> None:
    millrace = str(Path(sys.executable).parent / "millrace")
    sizes = ["--orders", "120", "--call-time", "30ms"]
    ran = subprocess.run(
        [millrace, "demo", "--folder", str(tmp_path / "demo"), *sizes],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = ran.stdout
    killed_at = number(r"Spark and all, after ([\d,]+) answers", told)
    before = number(r"([\d,]+) answers before the kill", told)
    after = number(r"([\d,]+) answers after it", told)
    in_all = number(r"= +([\d,]+) answers", told)
    orders = number(r"= +([\d,]+) orders \+", told)
    twice = number(r"orders \+ ([\d,]+) asked about twice", told)
    reused = number(r"([\d,]+) answers that the first run had published", told)
    returned = number(r"([\d,]+) answers that had returned", told)
    again = number(r"([\d,]+) orders asked about by the second run", told)
    dollars = [float(each) for each in re.findall(r"\$(0\.\d+)", told)]
    recorded = number(r"= +([\d,]+) orders;", told)
    in_doubt = number(r"orders; ([\d,]+) of them in doubt", told)
    assert number(r"rows in: ([\d,]+)", told) == 120
    assert 60 <= before == killed_at
    assert before + after == in_all == orders + twice
    assert reused + returned + again == recorded == orders == 120
    assert before == reused + returned + twice
    assert after == again
    assert twice <= in_doubt
    assert abs(dollars[0] + dollars[1] - dollars[2]) < 2e-6
    assert abs(dollars[3] + dollars[4] - dollars[5]) < 2e-6, "recorded, lost, the invoice"
    assert dollars[5] == dollars[2]
    assert "nothing lost, nothing doubled" in told
    workspace = re.search(r"see it in a browser: millrace ui (\S+)", told)
    assert workspace is not None
    assert Path(workspace[1], "workspace.json").exists()
