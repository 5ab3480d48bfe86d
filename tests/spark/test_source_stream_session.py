"""The session behind a streaming query, without Spark: limits, what comes again or is refused."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import MemberLost, SchemaMismatch, UserError
from millrace.spark.source.limited_stream import LimitedStreamReader
from millrace.spark.source.source_options import SourceOptions, parse
from millrace.spark.source.stream_read import find_read
from millrace.spark.source.stream_reader import stream_schema
from millrace.spark.source.stream_rows import columns_of
from millrace.spark.source.stream_session import BatchLimit, StreamSession, StreamStart
from millrace.spark.source.stream_workspace import open_stream_workspace
from millrace.transport.streams.stream_server import StreamShare, fetch

SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
READ = mr.CoordinatedRead("streamed", [mr.Binding(name="all", prefix="t", key="key")])
READ_JSON = json.dumps(READ.to_dict())
JOURNALS = ("t/a", "t/b")
MEMBERS = 2
LONG_S = 60


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill") as opened:
        for name in JOURNALS:
            opened.journals.create(name, SCHEMA)
        yield opened


@contextlib.contextmanager
def session(
    ws: mr.Workspace, start: StreamStart, schema: pa.Schema | None = None
) -> Iterator[StreamSession]:
    place = open_stream_workspace(SourceOptions(path=ws.path, read="streamed"))
    wanted = schema or columns_of(READ, place.broker)
    found = StreamSession(place, READ, wanted, members=MEMBERS, start=start)
    try:
        yield found
    finally:
        found.close()
        place.close()


def pay(ws: mr.Workspace, number: int) -> None:
    """A transaction of six rows over both journals."""
    with ws.journals.producer("shop") as shop:
        for name in JOURNALS:
            rows = {"key": range(3), "amount": [number] * 3}
            shop.append(name, pa.table(rows, schema=SCHEMA))
        shop.commit()


def settle(found: StreamSession, after: int) -> int:
    """The first checkpoint after this one, when it is there."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        number = found.settled()
        if number > after:
            return number
        time.sleep(0.01)
    raise AssertionError("no checkpoint in time")


def amounts(found: StreamSession, start: int, end: int) -> list[int]:
    """What tasks get of a range, over all members, in order of the number."""
    rows: list[int] = []
    for member in range(MEMBERS):
        piece = StreamShare(member=member, members=MEMBERS, start=start, end=end)
        for batch in fetch(found.address, piece, None):
            assert batch.schema.equals(found.schema)
            rows += batch.column("amount").to_pylist()
    return sorted(rows)


def test_a_batch_has_as_many_checkpoints_as_a_limit_allows(ws: mr.Workspace) -> None:
    with session(ws, StreamStart(done=0, begun=0)) as found:
        limit = BatchLimit(rows=13)
        assert found.advance(0, limit) == 0
        ends = [0]
        for number in range(5):
            pay(ws, number)
            ends.append(settle(found, ends[-1]))
        assert found.advance(0, limit) == ends[2]
        assert amounts(found, 0, ends[2]) == [0] * 6 + [1] * 6
        assert found.advance(ends[2], limit, upto=ends[3]) == ends[3]
        assert found.advance(ends[3], BatchLimit()) == ends[5]
        assert amounts(found, ends[3], ends[5]) == [3] * 6 + [4] * 6


def test_limits_hold_also_for_what_comes_while_a_batch_from_before_is_read_again(
    ws: mr.Workspace,
) -> None:
    options = parse({"path": ws.path, "read": READ_JSON, "maxRowsPerTrigger": "13"}, "stream")
    reader = LimitedStreamReader(options, stream_schema(options))
    try:
        assert reader.reportLatestOffset() is None
        assert reader.partitions({"checkpoint": 0}, {"checkpoint": 0}) == []
        assert reader._session is not None
        ends = [0]
        for number in range(4):
            pay(ws, number)
            ends.append(settle(reader._session, ends[-1]))
        limit = reader.getDefaultReadLimit()
        shown = reader.reportLatestOffset()
        assert shown is not None
        assert (shown["checkpoint"], shown["pendingHints"]) == (ends[4], 0)
        # Each of four payments has three rows in each journal, and nothing is committed.
        assert shown["lagRows"] == 4 * 3 * shown["journals"]
        found = reader.latestOffset({"checkpoint": 0}, limit)
        assert found == {"checkpoint": ends[2]}
        assert reader.latestOffset(found, limit) == {"checkpoint": ends[4]}
    finally:
        reader.stop()


def test_one_checkpoint_comes_even_if_it_is_larger_than_the_limit(ws: mr.Workspace) -> None:
    with session(ws, StreamStart(done=0, begun=0)) as found:
        begin = found.advance(0, BatchLimit(rows=1))
        for limit in (BatchLimit(rows=1), BatchLimit(bytes=1)):
            pay(ws, 1)
            end = settle(found, begin)
            assert found.advance(begin, limit) == end
            assert amounts(found, begin, end) == [1] * 6
            begin = end


def test_a_batch_that_was_begun_comes_again_as_it_was_and_what_was_not_told_is_new(
    ws: mr.Workspace,
) -> None:
    with session(ws, StreamStart(done=0, begun=0)) as found:
        ends = [0]
        for number in range(3):
            pay(ws, number)
            ends.append(settle(found, ends[-1]))
    pay(ws, 3)
    with session(ws, StreamStart(done=ends[1], begun=ends[2])) as found:
        assert amounts(found, ends[1], ends[2]) == [1] * 6
        assert amounts(found, ends[1], ends[2]) == [1] * 6
        seen: list[int] = []
        begin = ends[2]
        until = time.monotonic() + LONG_S
        while len(seen) < 12 and time.monotonic() < until:
            end = found.advance(begin, BatchLimit())
            seen += amounts(found, begin, end) if end > begin else []
            begin = end
        assert sorted(seen) == [2] * 6 + [3] * 6
        found.commit(begin)
        with pytest.raises(UserError, match="not those of a batch that runs"):
            amounts(found, ends[2], begin)


def test_a_log_that_knows_other_checkpoints_is_refused(ws: mr.Workspace) -> None:
    with (
        pytest.raises(UserError, match="has no checkpoint 7 to resume from"),
        session(ws, StreamStart(done=7, begun=7)),
    ):
        pass


def test_rows_are_given_only_to_those_with_the_token_and_the_members(ws: mr.Workspace) -> None:
    with session(ws, StreamStart(done=0, begun=0)) as found:
        pay(ws, 1)
        end = settle(found, 0)
        where = found.address
        wrong = replace(where, token=where.token[::-1])
        piece = StreamShare(member=0, members=MEMBERS, start=0, end=end)
        with pytest.raises(MemberLost, match="refuses the token"):
            list(fetch(wrong, piece, None))
        with pytest.raises(UserError, match="2 members"):
            list(fetch(where, StreamShare(member=0, members=3, start=0, end=end), None))


def test_where_the_folder_is_not_seen_the_planned_address_is_used(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    with session(ws, StreamStart(done=0, begun=0)) as found:
        pay(ws, 1)
        end = settle(found, 0)
        seen = found.address
        where = replace(seen, path=str(tmp_path / "elsewhere"))
        pieces = [StreamShare(member=m, members=MEMBERS, start=0, end=end) for m in range(MEMBERS)]
        assert sum(batch.num_rows for each in pieces for batch in fetch(where, each, None)) == 6


def test_a_column_that_the_query_does_not_know_is_named(ws: mr.Workspace) -> None:
    with session(ws, StreamStart(done=0, begun=0), pa.schema([("key", pa.int64())])) as found:
        pay(ws, 1)
        end = settle(found, 0)
        with pytest.raises(SchemaMismatch, match="'amount' is not among the columns"):
            amounts(found, 0, end)


def test_a_stream_of_a_journal_needs_a_name(ws: mr.Workspace) -> None:
    place = open_stream_workspace(parse({"path": ws.path, "journal": "t/a"}, "stream"))
    try:
        with pytest.raises(UserError, match="has no name"):
            find_read(parse({"path": ws.path, "journal": "t/a"}, "stream"), place.broker)
    finally:
        place.close()
