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
    killed_at = number(r"Spark and all, after ([\d,]+) calls", told)
    before = number(r"([\d,]+) calls before the kill", told)
    after = number(r"([\d,]+) calls after it", told)
    in_all = number(r"= +([\d,]+) calls =", told)
    orders = number(r"calls = ([\d,]+) orders \+", told)
    twice = number(r"orders \+ ([\d,]+) called twice", told)
    reused = number(r"([\d,]+) results that the first run had published", told)
    returned = number(r"([\d,]+) results of calls that had returned", told)
    again = number(r"([\d,]+) orders called by the second run", told)
    recorded = number(r"= +([\d,]+) orders;", told)
    in_doubt = number(r"orders; ([\d,]+) of them in doubt", told)
    assert number(r"rows in: ([\d,]+)", told) == 120
    assert 60 <= before == killed_at
    assert before + after == in_all == orders + twice
    assert reused + returned + again == recorded == orders == 120
    assert before == reused + returned + twice
    assert after == again
    assert twice <= in_doubt
    assert "nothing lost, nothing doubled" in told
    page = re.search(r"the report: (\S+)", told)
    assert page is not None
    assert "<svg" in Path(page[1]).read_text(encoding="utf-8")
