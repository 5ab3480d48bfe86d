"""A workspace as PySpark's session: names that need no Spark, and errors that say why."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it


@pytest.fixture
def ws(tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", create=True)


def test_names_of_the_class_say_where_they_are(ws: mr.Workspace) -> None:
    with pytest.raises(AttributeError, match=r"no newSession\n  found: .*\n  to fix: open another"):
        ws.newSession()
    with pytest.raises(AttributeError, match="Workspace has no 'sequel'"):
        _ = ws.sequel


def test_a_builder_gives_the_workspace_that_is_open(tmp_path: Path) -> None:
    builder = mr.SparkSession.builder.config("millrace.workspace", tmp_path / "one")
    first = builder.getOrCreate()
    assert (
        mr.SparkSession.builder.config(map={"millrace.workspace": tmp_path / "one"}).getOrCreate()
        is first
    )
    first.range(3).createOrReplaceTempView("three")
    assert mr.SparkSession.active().table("three").columns == ["id"]
    other = mr.SparkSession.builder.config(
        "millrace.workspace", str(tmp_path / "two")
    ).getOrCreate()
    assert mr.SparkSession.getActiveSession() is other
    assert builder.create() is not first
    first.stop()
    other.stop()
    assert builder.getOrCreate() is not first


def test_datasets_columns_and_values_are_written_into_sql(ws: mr.Workspace) -> None:
    rows = ws.from_arrow(pa.table({"a": [1, 2], "s": ["x", "it's"]}))
    query = ws.sql(
        "SELECT {r.a} AS b, {c} FROM {r} WHERE s = {s} AND a < {n}",
        r=rows,
        c=F.col("s"),
        s="it's",
        n=9,
    )
    assert query.columns == ["b", "s"]
    assert r"s = 'it\'s'" in str(query.explain())


def test_the_catalog_knows_views_of_the_workspace(ws: mr.Workspace) -> None:
    ws.range(2).createOrReplaceTempView("two")
    assert ws.catalog.tableExists("two")
    assert ws.catalog.dropTempView("two")
