"""Writes the tables of docs/coming-from-pyspark.md: where each method of PySpark's classes runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import GroupedData as SparkGroupedData

from millrace.datasets.dataset import Dataset
from millrace.datasets.grouped_data import GroupedData
from millrace.datasets.spark_methods import BY_SPARK, NOT_OFFERED

PAGE: Final = Path(__file__).parents[1] / "docs" / "coming-from-pyspark.md"
START, END = "<!-- methods: {} -->", "<!-- end of {} -->"
CLASSES: Final = {"DataFrame": (DataFrame, Dataset), "GroupedData": (SparkGroupedData, GroupedData)}


def public(kind: type) -> list[str]:
    """The public names of a class."""
    return [name for name in dir(kind) if not name.startswith("_")]


def row(name: str, ours: type) -> str:
    """A line of the table."""
    if name in NOT_OFFERED:
        reason, fix = NOT_OFFERED[name]
        return f"| `{name}` | no | {reason}; {fix} |"
    if not hasattr(ours, name):
        return f"| `{name}` | not yet | |"
    if name in BY_SPARK:
        return f"| `{name}` | on Spark | {BY_SPARK[name]} |"
    return f"| `{name}` | here | |"


def table(name: str) -> str:
    """The table of a class."""
    theirs, ours = CLASSES[name]
    rows = [row(method, ours) for method in public(theirs)]
    return "\n".join(["| method | where | |", "|---|---|---|", *rows])


def written(page: str) -> str:
    """The page with tables that are true."""
    for name in CLASSES:
        start, end = START.format(name), END.format(name)
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = f"{before}{start}\n\n{table(name)}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
