"""Plans of reads: settled once, and never answered by other rows than planned."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import DataLost, OffsetOutOfRange, UserError
from millrace.pipeline.core import hops
from millrace.spark.source.batch_reader import JournalPlan, plan_of
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = str(tmp_path / "mill")
    with WorkspaceEntry.of(SourceOptions(path=folder), make=True).journals() as broker:
        for name in ("a", "b", hops.output_journal("j", "s", 0)):
            broker.create(name, SCHEMA)
        for begin in range(0, 30, 10):
            with broker.transaction() as t:  # With ACKs, so that offsets have gaps.
                t.append("a", pa.table({"id": range(begin, begin + 10)}))
                t.append("b", pa.table({"id": range(begin, begin + 10)}))
        broker.append(hops.output_journal("j", "s", 0), pa.table({"id": [1, 2, 3]}))
    return folder


def ids(plan: object) -> list[list[int]]:
    sent = pickle.loads(pickle.dumps(plan))
    assert isinstance(sent, JournalPlan)
    return [
        [n for batch in sent.batches(part, ["id"]) for n in batch["id"].to_pylist()]
        for part in sent.partitions()
    ]


@pytest.mark.parametrize("rows", [1, 4, 11, 12, 1000])
def test_ranges_have_every_row_once_wherever_they_are_cut(path: str, rows: int) -> None:
    found = ids(plan_of(SourceOptions(path=path, journal="a", partition_rows=rows)))
    assert [n for part in found for n in part] == list(range(30))


def test_rows_that_come_after_the_plan_are_not_read(path: str) -> None:
    plan = plan_of(SourceOptions(path=path, journal="a"))
    with WorkspaceEntry.of(SourceOptions(path=path)).journals() as broker:
        broker.append("a", pa.table({"id": [99]}))
    assert ids(plan) == [list(range(30))]


def test_a_journal_made_anew_is_not_taken_for_the_planned_one(path: str) -> None:
    plan = plan_of(SourceOptions(path=path, journal="a"))
    with WorkspaceEntry.of(SourceOptions(path=path)).journals() as broker:
        broker.delete("a")
        broker.create("a", SCHEMA)
        broker.append("a", pa.table({"id": range(50)}))
    with pytest.raises(DataLost, match="another one than when the read was planned"):
        ids(plan)


def test_a_step_whose_rows_are_partly_gone_is_not_read_as_if_it_were_whole(path: str) -> None:
    name = hops.output_journal("j", "s", 0)
    assert ids(plan_of(SourceOptions(path=path, job="j", step="s"))) == [[1, 2, 3]]
    with WorkspaceEntry.of(SourceOptions(path=path)).journals() as broker:
        broker.truncate_before(name, 1)
    with pytest.raises(DataLost, match="begins at offset 1"):
        plan_of(SourceOptions(path=path, job="j", step="s"))
    with pytest.raises(OffsetOutOfRange, match="found: 1 to 3"):
        plan_of(SourceOptions(path=path, journal=name, start_offset=0))
    with pytest.raises(UserError, match="found: rows of s"):
        plan_of(SourceOptions(path=path, job="j", step="t"))
