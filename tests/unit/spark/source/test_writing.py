"""What becomes of files that tasks wrote: adopted once, or removed while nobody can have them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import JournalUnknown, OwnerUnreachable, SchemaMismatch, UserError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Published, SegmentFile
from millrace.journal.memory import MemoryBroker
from millrace.spark.source import journal_writer
from millrace.spark.source.journal_writer import JournalBatchWriter, JournalFiles, Target, store
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry

SCHEMA = pa.schema([("id", pa.int64())])
TARGET = Target(("n",), (), SCHEMA)


@pytest.fixture
def entry(tmp_path: Path) -> WorkspaceEntry:
    return WorkspaceEntry.of(SourceOptions(path=str(tmp_path / "mill")), make=True)


def written(entry: WorkspaceEntry, partition: int, *ids: int) -> JournalFiles:
    """As a task would."""
    rows = pa.record_batch({"id": pa.array(ids, pa.int64())})
    return JournalFiles(partition, store(entry, TARGET, iter([rows])))


def ids_in(entry: WorkspaceEntry) -> list[int]:
    with entry.journals() as broker:
        found: list[int] = broker.read("n", 0).rows()["id"].to_pylist()
        return found


def exists(message: JournalFiles) -> list[bool]:
    return [os.path.exists(file.path) for _, file in message.files]


def test_committed_files_are_rows_in_the_order_of_tasks_and_others_are_not(
    entry: WorkspaceEntry,
) -> None:
    second, first = written(entry, 1, 3, 4), written(entry, 0, 1, 2)
    written(entry, 0, 1, 2)  # A second copy of the task, whose message never came.
    JournalBatchWriter(entry, TARGET).commit([second, first])
    assert ids_in(entry) == [1, 2, 3, 4]


def test_abort_removes_files_unless_a_commit_may_have_been_tried(entry: WorkspaceEntry) -> None:
    writer = JournalBatchWriter(entry, TARGET)
    failed = written(entry, 0, 1)
    writer.abort([failed, None])
    assert exists(failed) == [False]

    done = written(entry, 0, 1)
    writer.commit([done])
    writer.abort([done])  # What Spark does if the commit's answer was lost.
    assert (exists(done), ids_in(entry)) == ([True], [1])


class AnswerLost:
    """A broker whose first answer never comes, although it did what it was asked."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.asked = 0

    def adopt(self, files: Mapping[str, Sequence[SegmentFile]]) -> Published:
        self.asked += 1
        done = self.broker.adopt(files)
        if self.asked == 1:
            raise OwnerUnreachable("it may have been carried out")
        return done


def commit_with_lost_answer(broker: Broker) -> None:
    broker.create("n", SCHEMA)
    file = broker.store_file(SCHEMA, [pa.record_batch({"id": [1, 2]})])
    given: Any = AnswerLost(broker)
    try:
        journal_writer._adopt(given, {"n": [file]})
    finally:
        assert (given.asked, broker.read("n", 0).num_rows) == (2, 2)


def test_a_commit_whose_answer_was_lost_is_asked_again_and_done_once(entry: WorkspaceEntry) -> None:
    with entry.journals() as broker:
        commit_with_lost_answer(broker)


def test_a_commit_that_may_have_been_done_says_so_where_files_are_copied() -> None:
    with pytest.raises(OwnerUnreachable, match="look whether the rows are in n"):
        commit_with_lost_answer(MemoryBroker())


def test_nothing_is_made_before_the_commit(entry: WorkspaceEntry) -> None:
    written(entry, 0, 1)
    with entry.journals() as broker, pytest.raises(JournalUnknown):
        broker.get("n")


def test_nulls_where_the_journal_has_none_are_refused(entry: WorkspaceEntry) -> None:
    strict = Target(("n",), (), pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(SchemaMismatch, match="'id' has 1 nulls"):
        store(entry, strict, iter([pa.record_batch({"id": pa.array([1, None])})]))


def test_a_workspace_is_made_for_writers_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no workspace at"):
        WorkspaceEntry.of(SourceOptions(path=str(tmp_path / "typo")))
    assert not (tmp_path / "typo").exists()


def test_journals_in_memory_and_those_of_other_hosts_are_never_owned(tmp_path: Path) -> None:
    memory = WorkspaceEntry.of(SourceOptions(path=str(tmp_path / "m"), broker="memory"), make=True)
    elsewhere = replace(memory, path=str(tmp_path / "none"), kind="embedded")
    for entry in (memory, elsewhere):
        with pytest.raises(OwnerUnreachable, match="millrace serve"), entry.journals():
            pass
    assert not (tmp_path / "none").exists()
