"""`explain()` says what would be reused, and why not more, without running anything."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.datasets.dataset import Dataset

pytestmark = pytest.mark.spark
FILES = 3
CONFIG = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=1 << 20,
    read_together_bytes_max=1,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        table = pa.table({"k": range(50), "v": range(number, number + 50)})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    return tmp_path / "in"


def totals(ws: mr.Workspace, folder: Path, condition: str = "v >= 0") -> Dataset:
    return ws.read_parquet(folder).filter(condition).group_by("k").agg(total="sum(v)")


def said(query: Dataset) -> list[str]:
    """What is said of each stage."""
    lines = query.explain().splitlines()
    return [lines[n + 1].strip(" ()") for n, line in enumerate(lines) if line.startswith("stage")]


def test_what_is_foreseen_is_what_happens(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG, create=True)

    assert said(totals(ws, folder)) == [
        "would run 3 of 3 tasks, 0 reused; 3 because: not done before",
        "depends on stage 0",
    ]
    assert ws.runs() == []
    totals(ws, folder).run()
    assert said(totals(ws, folder)) == ["all of 3 tasks reused", "all of 1 task reused"]

    pq.write_table(pa.table({"k": range(70), "v": range(70)}), folder / "1.parquet")
    changed, later = said(totals(ws, folder))
    assert changed.startswith(
        "would run 1 of 3 tasks, 2 reused; 1 because: 1.parquet changed (size"
    )
    assert later == "depends on stage 0"
    reports = totals(ws, folder).run().stages
    assert [(report.ran, report.reused) for report in reports] == [(1, 2), (1, 0)]
    assert len(ws.runs()) == 2


def test_another_query_of_the_same_rows_is_told_stage_by_stage(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
    totals(ws, folder).run()

    other = said(totals(ws, folder, "v >= 10"))
    above = said(totals(ws, folder).filter("total > 100"))

    assert other[0].startswith("would run 3 of 3 tasks, 0 reused; 3 because: ")
    assert above[0] == "all of 3 tasks reused"
    assert above[1].startswith("would run 1 of 1 task, 0 reused; 1 because: ")


def test_a_join_whose_one_side_is_finished(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
    totals(ws, folder).run()
    joined = totals(ws, folder).join(ws.read_parquet(folder), on="k", how="full")

    told = said(joined)

    assert told[0] == "all of 3 tasks reused"
    assert any(line.startswith("would run 3 of 3 tasks") for line in told[1:])
    assert told[-1].startswith("depends on stage")


def test_without_a_session_only_the_stages_are_shown(folder: Path, tmp_path: Path) -> None:
    ws = mr.open(tmp_path / "mill", config=CONFIG)

    text = totals(ws, folder).explain()

    assert "reused" not in text
    assert text.startswith("stage 0 -> hash(k)")
