"""Files that are not read because the names of their folders say that a filter drops their rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, scan

from millrace.datasets.dataset import Dataset
from millrace.engine.partition_matches import matching_files
from millrace.engine.run_values import RunMoment
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.stages import plan_stages


@pytest.fixture
def days(tmp_path: Path) -> Dataset:
    for day in ("2024-01-01", "2024-01-02", "2024-01-03", "__HIVE_DEFAULT_PARTITION__"):
        for key in (1, 2):
            folder = tmp_path / f"day={day}" / f"k={key}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"v": [1, 2]}), folder / "a.parquet")
    return scan(tmp_path)


def files_read(dataset: Dataset) -> list[str]:
    """The partition folders of the files that a plan reads."""
    sizes = replace(CUT_UP, matching_files=partial(matching_files, "UTC", RunMoment(micros=0)))
    scans = [
        leaf
        for stage in plan_stages(dataset._plan, sizes)
        for leaf in stage.leaves
        if isinstance(leaf, Scan)
    ]
    return [
        "/".join(shape.file.path.split("/")[-3:-1])
        for leaf in scans
        for shape in leaf.source.shapes
    ]


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("k = 2", 4),
        ("day = DATE '2024-01-02'", 2),
        ("day = DATE '2024-01-02' AND k = 1 AND v > 0", 1),
        ("day > DATE '2024-01-01' OR k = 1", 6),
        ("day IS NULL", 2),
        ("k + v > 3", 8),
        ("v > 0", 8),
    ],
)
def test_a_filter_on_columns_of_folders_leaves_out_files(
    days: Dataset, condition: str, count: int
) -> None:
    assert len(files_read(days.filter(condition))) == count


def test_files_are_left_out_below_joins_and_other_operators(days: Dataset) -> None:
    query = days.join(days.group_by("k").agg(n="count(*)"), on="k").filter("k = 2 AND n > 1")

    assert {folder.split("/")[1] for folder in files_read(query)} == {"k=2"}


def test_if_no_file_matches_one_is_read_and_the_filter_drops_its_rows(days: Dataset) -> None:
    assert len(files_read(days.filter("k = 7"))) == 1


def test_a_condition_that_can_fail_leaves_out_nothing(days: Dataset) -> None:
    assert len(files_read(days.filter("1 / (k - 1) > 0"))) == 8
