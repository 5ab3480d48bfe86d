"""Pages of a workspace in a bucket, with its journals."""

from __future__ import annotations

from tests.unit.page.page_kit import check_pages, fill

import millrace as mr


def test_every_page_says_what_it_knows(url: str) -> None:
    with mr.open(url, create=True) as ws:
        fill(ws)
        check_pages(url)
