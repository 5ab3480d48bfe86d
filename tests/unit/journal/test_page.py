"""The page on journals: its example runs, and its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.test_docs import DEFAULTS, blocks, default_in_words

PAGE = Path(__file__).parents[3] / "docs" / "journals.md"


@pytest.mark.parametrize("example", blocks(PAGE))
def test_the_examples_run(example: str) -> None:
    exec(example, {})  # noqa: S102 - our own page


def test_the_limits_are_those_of_the_code() -> None:
    row = re.compile(r"^\| `(?:Config\.)?(\w+)` \| ([^|]+) \|", re.MULTILINE)
    page = PAGE.read_text(encoding="utf-8").partition("\n## Limits\n")[2]
    shown = {name: text for name, text in row.findall(page) if name in DEFAULTS}
    expected = {
        name
        for name in DEFAULTS
        if name.startswith(("journal_", "ledger_", "owner_")) and name != "journal_move_out_max"
    }

    assert expected - set(shown) == set()
    assert {name: default_in_words(text) for name, text in shown.items()} == {
        name: DEFAULTS[name] for name in shown
    }
