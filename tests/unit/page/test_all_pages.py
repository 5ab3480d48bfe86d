"""Every kind of page is there, whatever keeps the ledger of the journals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.page.page_kit import check_pages, fill

import millrace as mr


@pytest.mark.parametrize("ledger", ["sqlite", "files"])
def test_every_page_says_what_it_knows(tmp_path: Path, ledger: str) -> None:
    with mr.open(tmp_path / "mill", create=True, ledger=ledger) as ws:
        fill(ws)
        check_pages(str(tmp_path / "mill"))
