"""Writes the tables of docs/coming-from-pyspark.md: where each public name of PySpark runs.

The names are those of the installed PySpark. A name that Spark adds is "not yet" until someone says
where it runs, and a test fails on that word.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark.sql
from pyspark.sql.dataframe import DataFrameNaFunctions, DataFrameStatFunctions

from millrace.calls import workspace_session
from millrace.calls.workspace_reader import DataFrameReader
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_missing import MissingValues
from millrace.datasets.dataset_statistics import Statistics
from millrace.datasets.dataset_writer import DatasetWriter
from millrace.datasets.grouped_data import GroupedData
from millrace.datasets.spark_methods import BY_SPARK, NOT_OFFERED
from millrace.spark_session import SessionBuilder
from millrace.workspace import Workspace

PAGE: Final = Path(__file__).parents[1] / "docs" / "coming-from-pyspark.md"
START, END = "<!-- methods: {} -->", "<!-- end of {} -->"
_READS: Final = "Spark's own reader, whose rows are saved"
_WRITES: Final = "Spark's own writer, over the saved rows"
_SESSION: Final = dict.fromkeys(workspace_session.OF_SPARK, "Spark's session answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A class of PySpark, and what stands for it here."""

    theirs: type
    ours: type
    by_spark: Mapping[str, str]
    not_offered: Mapping[str, tuple[str, str]]


FRONTS: Final = {
    "DataFrame": Front(
        theirs=pyspark.sql.DataFrame, ours=Dataset, by_spark=BY_SPARK, not_offered=NOT_OFFERED
    ),
    "GroupedData": Front(
        theirs=pyspark.sql.GroupedData,
        ours=GroupedData,
        by_spark={},
        not_offered=NOT_OFFERED,
    ),
    "DataFrameNaFunctions": Front(
        theirs=DataFrameNaFunctions, ours=MissingValues, by_spark={}, not_offered={}
    ),
    "DataFrameStatFunctions": Front(
        theirs=DataFrameStatFunctions, ours=Statistics, by_spark=BY_SPARK, not_offered={}
    ),
    "DataFrameReader": Front(
        theirs=pyspark.sql.DataFrameReader,
        ours=DataFrameReader,
        by_spark=dict.fromkeys(("csv", "json", "orc", "text", "xml", "jdbc", "changes"), _READS),
        not_offered={},
    ),
    "DataFrameWriter": Front(
        theirs=pyspark.sql.DataFrameWriter,
        ours=DatasetWriter,
        by_spark=dict.fromkeys(
            (
                *("csv", "json", "orc", "text", "xml", "jdbc", "bucketBy", "sortBy", "clusterBy"),
                *("partitionBy", "insertInto", "saveAsTable"),
            ),
            _WRITES,
        ),
        not_offered={},
    ),
    "SparkSession": Front(
        theirs=pyspark.sql.SparkSession,
        ours=Workspace,
        by_spark=_SESSION,
        not_offered=workspace_session.NOT_OFFERED,
    ),
    "SparkSession.builder": Front(
        theirs=pyspark.sql.SparkSession.Builder, ours=SessionBuilder, by_spark={}, not_offered={}
    ),
}


def public(kind: type) -> list[str]:
    """The public names of a class."""
    return [name for name in dir(kind) if not name.startswith("_")]


def row(name: str, front: Front) -> str:
    """A line of the table."""
    if name in front.not_offered:
        reason, fix = front.not_offered[name]
        return f"| `{name}` | no | {reason}; {fix} |"
    if not hasattr(front.ours, name) and name not in workspace_session.OF_SPARK:
        return f"| `{name}` | not yet | |"
    if name in front.by_spark:
        return f"| `{name}` | on Spark | {front.by_spark[name]} |"
    return f"| `{name}` | here | |"


def table(name: str) -> str:
    """The table of a class."""
    front = FRONTS[name]
    rows = [row(method, front) for method in public(front.theirs)]
    return "\n".join(["| name | where | |", "|---|---|---|", *rows])


def refused_calls(name: str) -> list[str]:
    """Parameters of Spark's methods that the ones here do not take: by name, or by position."""
    front = FRONTS[name]
    found = []
    for method in public(front.theirs):
        theirs, ours = getattr(front.theirs, method), getattr(front.ours, method, None)
        if inspect.isfunction(theirs) and inspect.isfunction(ours):
            found += [f"{name}.{method}: {what}" for what in _differences(theirs, ours)]
    return found


def _differences(theirs: object, ours: object) -> list[str]:
    """What a call of Spark's form can have and a call here cannot."""
    wanted, taken = _parameters(theirs), _parameters(ours)
    kinds = {parameter.kind for parameter in taken}
    every_name = inspect.Parameter.VAR_KEYWORD in kinds
    every_place = inspect.Parameter.VAR_POSITIONAL in kinds
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    out = []
    for place, parameter in enumerate(wanted):
        if parameter.kind is parameter.VAR_POSITIONAL and not every_place:
            out.append(f"takes no *{parameter.name}")
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            if parameter.name not in names and not every_name:
                out.append(f"takes no {parameter.name}=")
            same = place < len(places) and places[place].name == parameter.name
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not (same or every_place):
                out.append(f"takes {parameter.name} at another place")
    return out


def _parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    listed = inspect.signature(function).parameters.values()
    return [parameter for parameter in listed if parameter.name != "self"]


def written(page: str) -> str:
    """The page with tables that are true."""
    for name in FRONTS:
        start, end = START.format(name), END.format(name)
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        assert rest, f"the page has no place for {name}"
        page = f"{before}{start}\n\n{table(name)}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
