"""The page of the system tables says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_code_makes() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "system_tables.py"))["page"]()

    page = (ROOT / "docs" / "system-tables.md").read_text(encoding="utf-8")
    assert page == made, "run: python scripts/system_tables.py"
