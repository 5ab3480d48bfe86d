"""Jobs on Spark that append to a journal of another workspace, which has a broker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG

import millrace as mr
from millrace.errors import UserError

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROWS = 60


@pytest.fixture
def workspaces(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[mr.Workspace, mr.Workspace]]:
    with (
        mr.open(tmp_path / "mill", spark, config=CONFIG) as home,
        mr.open(tmp_path / "other", config=CONFIG) as other,
    ):
        yield home, other


def appended(other: mr.Workspace) -> list[int]:
    rows: list[int] = other.journals.read("even", 0).rows()["id"].to_pylist()
    return sorted(rows)


def test_rows_are_in_the_other_workspace_once_and_again_only_after_a_reset(
    workspaces: tuple[mr.Workspace, mr.Workspace], spark: SparkSession
) -> None:
    home, other = workspaces

    def job(rows: int) -> mr.Job:
        made = home.job("even")
        source = made.source("numbers", spark.range(rows), version="1", partitions=2)
        source.filter("id % 2 = 0").sink_journal("even", "out", workspace=other)
        return made

    report = job(ROWS).run()
    assert report.state == "finished"
    assert appended(other) == list(range(0, ROWS, 2))
    assert not [info.name for info in home.journals.list("even")]
    assert f"journal even in {other.path}" in job(ROWS).explain()

    job(ROWS).run()
    assert appended(other) == list(range(0, ROWS, 2)), "nothing is appended again"

    with pytest.raises(UserError, match="append_again=True"):
        job(ROWS).reset("out")
    job(ROWS).reset("out", append_again=True)
    job(ROWS).run()
    assert appended(other) == sorted([*range(0, ROWS, 2)] * 2)


def test_a_journal_of_the_other_workspace_with_other_columns_is_refused(
    workspaces: tuple[mr.Workspace, mr.Workspace], spark: SparkSession
) -> None:
    home, other = workspaces
    other.journals.create("even", pa.schema([("text", pa.string())]))
    job = home.job("even")
    job.source("numbers", spark.range(3)).sink_journal("even", workspace=other)

    with pytest.raises(mr.SchemaMismatch, match="does not fit journal 'even'"):
        job.run()
