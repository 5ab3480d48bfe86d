"""Writes the tables of docs/system-tables.md from the code, with their columns and meanings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.system.catalog import described

PAGE: Final = Path(__file__).parents[1] / "docs" / "system-tables.md"
MARK: Final = "<!-- Made by scripts/system_tables.py from here on. -->\n"


def page() -> str:
    """The page as it is to be: its own words, and the tables as the code has them."""
    words, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{PAGE} has no line {MARK!r}"
    return f"{words}{MARK}\n{described()}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
