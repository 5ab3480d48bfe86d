"""What the doctor found: a line for each part, and what to do where something is missing.

Invariant: a finding that is `missing` says how to get it, and only these make the command fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """A part that was looked at."""

    part: str
    verdict: Verdict
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.fix or self.verdict != "missing", self


def fine(part: str, found: str) -> DoctorFinding:
    """A part that is as it should be."""
    return DoctorFinding(part=part, verdict="ok", found=found)


def note(part: str, found: str, fix: str = "") -> DoctorFinding:
    """Something to know, without which most things work."""
    return DoctorFinding(part=part, verdict="note", found=found, fix=fix)


def missing(part: str, found: str, fix: str) -> DoctorFinding:
    """Something without which work fails."""
    return DoctorFinding(part=part, verdict="missing", found=found, fix=fix)


def of_error(part: str, error: BaseException, fix: str = "") -> DoctorFinding:
    """An error as a finding: its own advice is the fix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    advice = [line.removeprefix("to fix: ") for line in lines if line.startswith("to fix: ")]
    words = "; ".join(line for line in lines if not line.startswith("to fix: "))
    found = words or type(error).__name__
    return missing(part, found, advice[0] if advice else fix or "change what the message names")


def is_well(findings: Sequence[DoctorFinding]) -> bool:
    """Whether nothing is missing."""
    return all(finding.verdict != "missing" for finding in findings)
