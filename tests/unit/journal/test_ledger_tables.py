"""The texts of the ledger's statements."""

from __future__ import annotations

import re

from millrace.journal.embedded.ledger import ledger_pages, ledger_tables


def test_no_placeholder_has_a_number() -> None:
    # From Python 3.12 on they are a warning where values are a sequence, and from 3.14 an error.
    texts = [text for module in (ledger_tables, ledger_pages) for text in vars(module).values()]
    assert [text for text in texts if isinstance(text, str) and re.search(r"\?[0-9]", text)] == []
