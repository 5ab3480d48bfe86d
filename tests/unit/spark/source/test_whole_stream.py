"""A stream before Spark 4.2: the newest offset never goes back, and batches come again unchanged.

Spark says only where a batch begins and ends; these tests play its part, with restarts between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.spark.source.source_options import parse
from millrace.spark.source.stream_reader import stream_schema
from millrace.spark.source.whole_stream import WholeStreamReader

SCHEMA = pa.schema([("key", pa.int64())])
READ = mr.CoordinatedRead("whole", [mr.Binding(name="all", prefix="t", key="key")])


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill") as opened:
        opened.journals.create("t/a", SCHEMA)
        yield opened


@contextmanager
def reading(ws: mr.Workspace, **options: str) -> Iterator[WholeStreamReader]:
    """A reader of a new process, as after a restart of the query."""
    given = {"path": ws.path, "read": json.dumps(READ.to_dict()), **options}
    parsed = parse(given, "stream")
    reader = WholeStreamReader(parsed, stream_schema(parsed))
    try:
        yield reader
    finally:
        reader.stop()


def append(ws: mr.Workspace, *keys: int) -> None:
    for key in keys:
        ws.journals.append("t/a", pa.table({"key": [key]}, schema=SCHEMA))


def rows(reader: WholeStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    pieces = reader.partitions(start, end)
    found = (batch for piece in pieces for batch in reader.read(piece))
    return sorted(key for batch in found for key in batch[0].to_pylist())


def test_one_question_shows_all_rows_of_the_moment(ws: mr.Workspace) -> None:
    append(ws, *range(20))
    with reading(ws) as reader:
        newest = reader.latestOffset()
        start = reader.initialOffset()
        assert rows(reader, start, newest) == list(range(20))
        assert reader.latestOffset() == newest
        append(ws, 20)
        later = reader.latestOffset()
        assert rows(reader, newest, later) == [20]


def test_a_batch_that_was_begun_comes_again_after_a_restart(ws: mr.Workspace) -> None:
    append(ws, 1, 2)
    with reading(ws) as reader:
        first = reader.latestOffset()
        start = reader.initialOffset()
        shown = rows(reader, start, first)
    append(ws, 3)
    with reading(ws) as reader:  # Spark's log has a batch up to `first` that was not committed.
        assert rows(reader, start, first) == shown == [1, 2]
        then = reader.latestOffset()
        assert rows(reader, first, then) == [3]


def test_a_restart_after_a_commit_that_the_reader_was_not_told_of_loses_and_doubles_nothing(
    ws: mr.Workspace,
) -> None:
    append(ws, 1, 2)
    with reading(ws) as reader:
        first = reader.latestOffset()
        rows(reader, reader.initialOffset(), first)
    with reading(ws) as reader:  # Spark's log is at `first`, and begins by asking for the newest.
        assert reader.latestOffset() == first
        append(ws, 3)
        then = reader.latestOffset()
        assert rows(reader, first, then) == [3]


def test_an_offset_that_spark_never_logged_is_shown_again(ws: mr.Workspace) -> None:
    append(ws, 1)
    with reading(ws) as reader:
        start = reader.latestOffset()
        rows(reader, reader.initialOffset(), start)
        append(ws, 2)
        lost = reader.latestOffset()  # Killed before Spark wrote it down.
    with reading(ws) as reader:
        newest = reader.latestOffset()
        assert newest["checkpoint"] >= lost["checkpoint"]
        assert rows(reader, start, newest) == [2]


def test_a_log_from_before_the_last_commit_is_refused(ws: mr.Workspace) -> None:
    append(ws, 1)
    with reading(ws) as reader:
        first = reader.latestOffset()
        old = reader.initialOffset()
        rows(reader, old, first)
        append(ws, 2)
        second = reader.latestOffset()
        rows(reader, first, second)  # Everything up to `first` is done.
    with reading(ws) as reader:
        newest = reader.latestOffset()
        with pytest.raises(UserError, match="the query's log is not that of read whole"):
            reader.partitions(old, newest)
    with reading(ws) as reader:
        beyond = {"checkpoint": newest["checkpoint"] + 5}
        reader.latestOffset()
        with pytest.raises(UserError, match="give the newest checkpointLocation back"):
            reader.partitions(beyond, newest)


def test_a_limit_is_refused_with_the_version_that_has_it(ws: mr.Workspace) -> None:
    with (
        pytest.raises(UserError, match="a limit on a micro-batch: PySpark has this since 4.2"),
        reading(ws, maxRowsPerTrigger="5"),
    ):
        pass
