"""The documentation lists exactly the functions that are in the table."""

from __future__ import annotations

import re
from pathlib import Path

from millrace.plan.windows.window_functions import WINDOW_USAGES
from millrace.sql.aggregates.aggregate_functions import USAGES
from millrace.sql.functions.function_registry import (
    AGGREGATES,
    FUNCTIONS,
    SPARK_AGGREGATES,
)
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS

PAGE = Path(__file__).parents[3] / "docs" / "functions.md"


def listed() -> str:
    """The generated part of the page."""
    lines = []
    for group in dict.fromkeys(one.group for one in FUNCTIONS.values()):
        lines += [f"### {group}", ""]
        lines += [f"- `{one.usage}`" for one in FUNCTIONS.values() if one.group == group]
        lines += [""]
    lines += ["### Aggregates", "", *[f"- `{usage}`" for usage in USAGES]]
    return "\n".join(lines)


def test_the_page_lists_the_table() -> None:
    begin, end = "<!-- functions -->\n\n", "\n\n<!-- end -->"
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(begin)[1].split(end)[0] == listed()


def test_the_page_lists_the_window_functions() -> None:
    begin, end = "<!-- windows -->\n\n", "\n\n<!-- end of windows -->"
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split(begin)[1].split(end)[0].splitlines()
    assert shown == [f"- `{usage}`" for usage in WINDOW_USAGES]


def test_every_aggregate_is_listed() -> None:
    names = {name for line in USAGES for name in re.findall(r"(\w+)\(", line)}
    assert names == set(AGGREGATES) - set(SPARK_AGGREGATES)


def test_aggregates_that_are_left_to_spark_are_sparks() -> None:
    assert set(SPARK_AGGREGATES) <= SPARK_FUNCTIONS
