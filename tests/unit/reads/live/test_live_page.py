"""The page on live reads: its example runs, and its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.test_docs import DEFAULTS, blocks, default_in_words

from millrace.transport.owner.owner_calls import LIVE_RETRY_MS_MAX

PAGE = Path(__file__).parents[4] / "docs" / "live-reads.md"


@pytest.mark.parametrize("example", blocks(PAGE))
def test_the_examples_run(example: str) -> None:
    exec(example, {})  # noqa: S102 - our own page


def test_the_limits_are_those_of_the_code() -> None:
    row = re.compile(r"^\| `(live_\w+)` \| ([^|]+) \|", re.MULTILINE)
    shown = row.findall(PAGE.read_text(encoding="utf-8"))

    limits = {name: value for name, value in DEFAULTS.items() if name.startswith("live_")}
    assert f"| `Config.live_rings` | {limits.pop('live_rings')} |" in PAGE.read_text()
    limits["live_retry_ms_max"] = LIVE_RETRY_MS_MAX
    assert {name: default_in_words(text) for name, text in shown} == limits
