"""Short words for tests of sessions: rows with stamps of their own, and what a checkpoint shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import Flag, stamped_schema
from millrace.reads.api import ReadSession
from millrace.reads.model.checkpoint import Checkpoint
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.session_run import SessionOptions, SessionRun, SessionWorkspace
from millrace.reads.thread_members import as_threads

SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("what", pa.string())])
LONG_S = 30.0
"""For what must happen; nothing waits this long unless something is wrong."""

P, Q, ASIDE = 0x11, 0x22, 0x99


def row(producer: int, clock: int, what: str, flag: Flag = Flag.CONTINUE) -> tuple[object, ...]:
    """A row of a transaction."""
    return (producer, clock, flag.value, None, None, None, sum(what.encode()), what)


def alone(producer: int, clock: int, what: str) -> tuple[object, ...]:
    """A row that commits itself."""
    return row(producer, clock, what, Flag.OUTSIDE)


def ack(producer: int, clock: int, hints: Sequence[int] = ()) -> tuple[object, ...]:
    """The end of a transaction in a journal."""
    return (producer, clock, Flag.ACK.value, list(hints), None, None, None, None)


def write(broker: Broker, journal: str, *rows: tuple[object, ...]) -> None:
    """Append rows as they are."""
    schema = stamped_schema(SCHEMA)
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    arrays = [pa.array(list(values), field.type) for values, field in columns]
    broker.append_stamped(journal, pa.RecordBatch.from_arrays(arrays, schema=schema))


def reading(
    broker: Broker,
    folder: object,
    read: CoordinatedRead | None = None,
    *,
    members: int = 3,
    config: Config | None = None,
    **how: int | bool,
) -> ReadSession:
    """A session with members as threads."""
    config = config or Config()
    place = SessionWorkspace(broker, str(folder), config, as_threads(broker, config))
    opening = SessionOptions(members=members, holder="test", **how)  # type: ignore[arg-type]
    return ReadSession(place, read or a_read(), opening)


def run_of(session: ReadSession) -> SessionRun:
    """The run behind a session, to fail it."""
    assert session._run is not None
    return session._run


def a_read(name: str = "tested", **binding: object) -> CoordinatedRead:
    """Everything below `t`, by key."""
    given: dict[str, object] = {"name": "all", "prefix": "t", "key": "key", **binding}
    return CoordinatedRead(name, [Binding(**given)])  # type: ignore[arg-type]


def shown(session: ReadSession, checkpoint: Checkpoint | None) -> list[str]:
    """What a checkpoint shows, over all members, sorted."""
    assert checkpoint is not None, "no checkpoint in time"
    return sorted(rows_of(session, checkpoint))


def rows_of(session: ReadSession, checkpoint: Checkpoint) -> Iterable[str]:
    """The texts of all members, in their order."""
    for member in range(session.members):
        table = session.read(member, checkpoint)
        if table.num_rows:
            yield from table["what"].to_pylist()


def next_shown(session: ReadSession) -> list[str]:
    """The next checkpoint's rows; it is committed."""
    checkpoint = session.next_checkpoint(LONG_S)
    assert checkpoint is not None, "no checkpoint in time"
    found = shown(session, checkpoint)
    session.commit(checkpoint)
    return found


def check_nothing_else_is_shown(session: ReadSession, broker: Broker, *journals: str) -> None:
    """Fail if rows are shown that are in these journals by now and were not shown yet.

    Nothing is judged by time: a row of a producer of its own is written behind them. When it is
    shown, everything before it was looked at, and it has to be alone.
    """
    markers = sorted(f"{name} {broker.end_offset(name)}" for name in journals)
    for name, marker in zip(sorted(journals), markers, strict=True):
        write(broker, name, alone(ASIDE, 1_000_000 + broker.end_offset(name), marker))
    found: list[str] = []
    while len(found) < len(markers):
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None, "no checkpoint in time"
        found += rows_of(session, checkpoint)
        session.commit(checkpoint)
    assert sorted(found) == markers
