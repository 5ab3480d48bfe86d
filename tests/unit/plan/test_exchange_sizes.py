"""How sizes of files decide between exchanges and broadcasts, and how many partitions there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, scan, stages

from millrace import Dataset
from millrace.plan.nodes.exchange import Exchange
from millrace.plan.nodes.placement import InPlace
from millrace.plan.nodes.union import Union
from millrace.plan.planner.exchanges import COPIES_FACTOR, SEVERAL_READERS, scanned_bytes


@pytest.fixture
def large(tmp_path: Path) -> Dataset:
    """Ten times as many rows as the other table, in one file."""
    pq.write_table(pa.table({"k": range(1000), "v": range(1000)}), tmp_path / "large.parquet")
    return scan(tmp_path / "large.parquet")


@pytest.fixture
def medium(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"k": range(100), "w": range(100)}), tmp_path / "medium.parquet")
    return scan(tmp_path / "medium.parquet")


def test_a_medium_side_is_broadcast_while_its_copies_are_less_than_an_exchange(
    large: Dataset, medium: Dataset
) -> None:
    large_bytes, medium_bytes = scanned_bytes(large._plan), scanned_bytes(medium._plan)
    limit = replace(CUT_UP, broadcast_bytes_max=medium_bytes // 2)
    one_task = replace(limit, split_bytes_target=large_bytes)
    many_tasks = replace(limit, split_bytes_target=large_bytes // 50)
    too_large = replace(one_task, broadcast_bytes_max=medium_bytes // (2 * COPIES_FACTOR))
    query = large.join(medium, on="k")

    assert stages(query, one_task)[0] == "stage 0 -> broadcast: the right side is small"
    assert not any("broadcast" in line for line in stages(query, many_tasks))
    assert not any("broadcast" in line for line in stages(query, too_large))


@pytest.mark.parametrize(("tasks", "is_broadcast"), [(11, True), (14, False)])
def test_an_exchange_moves_both_sides_and_one_task_hashes_the_medium_one_in_any_case(
    large: Dataset, medium: Dataset, tasks: int, *, is_broadcast: bool
) -> None:
    large_bytes, medium_bytes = scanned_bytes(large._plan), scanned_bytes(medium._plan)
    sizes = replace(
        CUT_UP,
        broadcast_bytes_max=medium_bytes // 2,
        split_bytes_target=-(-large_bytes // tasks),
    )

    planned = stages(large.join(medium, on="k"), sizes)

    assert any("broadcast" in line for line in planned) is is_broadcast


def test_rows_that_lie_by_a_key_already_are_not_left_for_a_medium_side(
    large: Dataset, medium: Dataset
) -> None:
    sizes = replace(CUT_UP, broadcast_bytes_max=scanned_bytes(medium._plan) // 2)
    totals = large.group_by("k").agg(total="sum(v)")

    assert not any("broadcast" in line for line in stages(totals.join(medium, on="k"), sizes))


def test_bytes_of_shared_rows_count_once_after_they_are_placed(large: Dataset) -> None:
    shared = Exchange(large._plan, InPlace(), SEVERAL_READERS)
    readers = Union((shared, shared), ("k", "v"))

    assert scanned_bytes(readers) == scanned_bytes(large._plan)
