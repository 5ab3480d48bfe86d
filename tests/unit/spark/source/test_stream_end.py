"""A reader's process that Spark ends leaves nothing behind, and one with limits does not dawdle.

Run as a program, this file asks a reader for an offset, as Spark's process does, and waits.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadLimit

import millrace as mr
from millrace.errors import ReadsFailed, UserError
from millrace.spark.source.limited_stream import LimitedStreamReader
from millrace.spark.source.source_options import parse
from millrace.spark.source.stream_reader import stream_schema
from millrace.spark.source.stream_rows import columns_of
from millrace.spark.source.stream_session import BatchLimit, StreamSession, StreamStart
from millrace.spark.source.stream_workspace import open_stream_workspace
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("key", pa.int64())])
READ = mr.CoordinatedRead("ends", [mr.Binding(name="all", prefix="t", key="key")])
LONG_S = 300


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill") as opened:
        opened.journals.create("t/a", SCHEMA)
        yield opened


def main(path: str) -> None:
    options = parse({"path": path, "read": json.dumps(READ.to_dict())}, "stream")
    reader = LimitedStreamReader(options, stream_schema(options))
    try:
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        reader.stop()
        sys.stdout.write("stopped\n")


def begun(ws: mr.Workspace) -> subprocess.Popen[str]:
    """A reader's process that has opened its session."""
    child = subprocess.Popen(
        [sys.executable, __file__, ws.path],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "asked\n"
    assert list(staged(ws))
    return child


def staged(ws: mr.Workspace) -> Iterator[Path]:
    return (Path(ws.path) / "reads").glob("ends-*")


def is_free(ws: mr.Workspace) -> bool:
    lease = runtime_of(ws).joined_broker().acquire("reads/ends", "test", lease_ms=60_000)
    runtime_of(ws).joined_broker().release(lease)
    return True


def test_a_reader_that_spark_ends_gives_back_its_lease_and_its_folder(ws: mr.Workspace) -> None:
    child = begun(ws)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=LONG_S)
    assert child.returncode == 0
    assert "stopped" not in said  # It says nothing more to a Spark that does not listen.
    assert not list(staged(ws))
    assert is_free(ws)


def test_a_reader_whose_spark_is_gone_does_so_too(ws: mr.Workspace) -> None:
    child = begun(ws)
    said, _ = child.communicate("", timeout=LONG_S)
    assert child.returncode == 0
    assert said == "stopped\n"
    assert not list(staged(ws))
    assert is_free(ws)


def test_a_signal_that_somebody_else_waits_for_is_left_to_them(ws: mr.Workspace) -> None:
    before = signal.getsignal(signal.SIGTERM)
    options = parse({"path": ws.path, "read": json.dumps(READ.to_dict())}, "stream")
    reader = LimitedStreamReader(options, stream_schema(options))
    mine = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        wanted = signal.getsignal(signal.SIGTERM)
        reader.initialOffset()
        assert signal.getsignal(signal.SIGTERM) is wanted
        reader.stop()
        assert signal.getsignal(signal.SIGTERM) is wanted
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert signal.getsignal(signal.SIGTERM) == before


def test_with_a_limit_what_is_ready_is_told_at_once(ws: mr.Workspace) -> None:
    place = open_stream_workspace(
        parse({"path": ws.path, "read": json.dumps(READ.to_dict())}, "stream")
    )
    patient = replace(place, config=place.config.with_options(stream_wait_ms=1000 * LONG_S))
    columns = columns_of(READ, place.broker)
    session = StreamSession(patient, READ, columns, members=1, start=StreamStart(done=0, begun=0))
    try:
        session.take_ahead()
        ws.journals.append("t/a", pa.table({"key": [1]}, schema=SCHEMA))
        # To wait for one more look would be to wait for as long as the test may take.
        assert session.advance(0, BatchLimit(rows=100)) > 0
    finally:
        session.close()
        place.close()


def test_two_readers_of_a_task_end_with_an_error_that_says_so(ws: mr.Workspace) -> None:
    options = parse({"path": ws.path, "read": json.dumps(READ.to_dict())}, "stream")
    first, second = (LimitedStreamReader(options, stream_schema(options)) for _ in range(2))
    try:
        limit = first.getDefaultReadLimit()
        ws.journals.append("t/a", pa.table({"key": [1]}, schema=SCHEMA))
        start = first.initialOffset()
        shown = advance(first, start, limit)
        again = advance(second, start, limit)
        assert again != shown
        with pytest.raises(UserError, match="each use reads by itself and needs a read of its own"):
            rows(first, start, shown)
        assert rows(second, start, again) == [1]
        with pytest.raises(ReadsFailed, match="another session took this coordinated read over"):
            advance(first, start, limit)  # It asks until there is an answer.
    finally:
        first.stop()
        second.stop()


def advance(reader: LimitedStreamReader, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
    while (found := reader.latestOffset(start, limit)) == start:
        pass
    return found


def rows(reader: LimitedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    pieces = reader.partitions(start, end)
    return [key for each in pieces for batch in reader.read(each) for key in batch[0].to_pylist()]


if __name__ == "__main__":
    main(sys.argv[1])
