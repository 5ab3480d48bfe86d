"""Writes the tables of docs/metrics.md from the code: every metric with its labels and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.metrics.metric_catalog import metrics_described

PAGE: Final = Path(__file__).parents[1] / "docs" / "metrics.md"
MARK: Final = "<!-- Made by scripts/metrics.py from here on. -->\n"


def page() -> str:
    """The page as it is to be: its own words, and the metrics as the code has them."""
    words, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{PAGE} has no line {MARK!r}"
    return f"{words}{MARK}\n{metrics_described()}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
