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
from millrace.journal.contract import Broker
from millrace.journal.memory import MemoryBroker
from millrace.journal.values import Published, SegmentFile
from millrace.spark.source import writing
from millrace.spark.source.entry import Entry
from millrace.spark.source.options import Options
from millrace.spark.source.writing import Holder, JournalWriter, Target, Written

SCHEMA = pa.schema([("id", pa.int64())])
TARGET = Target(("n",), (), SCHEMA)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return Entry.of(Options(path=str(tmp_path / "mill")), make=True)


def written(entry: Entry, partition: int, *ids: int) -> Written:
    """As a task would."""
    with entry.journals() as broker:
        holder = Holder(broker, TARGET, 1)
        holder.add(pa.record_batch({"id": pa.array(ids, pa.int64())}))
        holder.store()
        return Written(partition, tuple(holder.made))


def ids_in(entry: Entry) -> list[int]:
    with entry.journals() as broker:
        found: list[int] = broker.read("n", 0).rows()["id"].to_pylist()
        return found


def exists(message: Written) -> list[bool]:
    return [os.path.exists(file.path) for _, file in message.files]


def test_committed_files_are_rows_in_the_order_of_tasks_and_others_are_not(entry: Entry) -> None:
    second, first = written(entry, 1, 3, 4), written(entry, 0, 1, 2)
    written(entry, 0, 1, 2)  # A second copy of the task, whose message never came.
    JournalWriter(entry, TARGET).commit([second, first])
    assert ids_in(entry) == [1, 2, 3, 4]


def test_abort_removes_files_unless_a_commit_may_have_been_tried(entry: Entry) -> None:
    writer = JournalWriter(entry, TARGET)
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
        writing._adopt(given, {"n": [file]})
    finally:
        assert (given.asked, broker.read("n", 0).num_rows) == (2, 2)


def test_a_commit_whose_answer_was_lost_is_asked_again_and_done_once(entry: Entry) -> None:
    with entry.journals() as broker:
        commit_with_lost_answer(broker)


def test_a_commit_that_may_have_been_done_says_so_where_files_are_copied() -> None:
    with pytest.raises(OwnerUnreachable, match="look whether the rows are in n"):
        commit_with_lost_answer(MemoryBroker())


def test_nothing_is_made_before_the_commit(entry: Entry) -> None:
    written(entry, 0, 1)
    with entry.journals() as broker, pytest.raises(JournalUnknown):
        broker.get("n")


def test_nulls_where_the_journal_has_none_are_refused(entry: Entry) -> None:
    strict = Target(("n",), (), pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with entry.journals() as broker:
        holder = Holder(broker, strict, 1)
        with pytest.raises(SchemaMismatch, match="'id' has 1 nulls"):
            holder.add(pa.record_batch({"id": pa.array([1, None])}))


def test_a_workspace_is_made_for_writers_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no workspace at"):
        Entry.of(Options(path=str(tmp_path / "typo")))
    assert not (tmp_path / "typo").exists()


def test_journals_in_memory_and_those_of_other_hosts_are_never_owned(tmp_path: Path) -> None:
    memory = Entry.of(Options(path=str(tmp_path / "m"), broker="memory"), make=True)
    elsewhere = replace(memory, path=str(tmp_path / "none"), kind="embedded")
    for entry in (memory, elsewhere):
        with pytest.raises(OwnerUnreachable, match="millrace serve"), entry.journals():
            pass
    assert not (tmp_path / "none").exists()
