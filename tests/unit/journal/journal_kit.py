"""Brokers to run the contract on, and short words for what tests do with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from millrace.config import Config
from millrace.journal.book_broker import Times
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import Flag, stamped_schema
from millrace.journal.core.values import Fetched, Lease, Published, SegmentFile
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.journal.memory import MemoryBroker
from millrace.journal.row_files import write_file
from millrace.storage.local import LocalStore
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.journal_owner import OwnedWorkspace, Owner
from millrace.transport.owner.owner_endpoint import JournalAddress

SCHEMA = pa.schema([("x", pa.int64())])
KINDS = ("memory", "embedded", "embedded files", "log", "joined", "direct")
""""embedded files" keeps next to nothing inside its ledger and has small segments; "log" has
a log for a ledger, in a folder; "joined" is a client of an owner in this process, over Flight;
"direct" is one that sees the workspace and writes all rows itself."""
FILES = Config().with_options(
    journal_small_bytes_max=1, journal_segment_bytes_target=4096, journal_range_bytes_target=512
)
HINTS = stamped_schema(SCHEMA).field(3).type
TOKEN = "a-token-for-tests"  # noqa: S105
START_NS = 1_700_000_000_000_000_000


@dataclass(slots=True)
class Hands:
    """A clock that tests move."""

    wall: int = START_NS
    steady: int = 0

    def times(self) -> Times:
        return Times(lambda: self.wall, lambda: self.steady)

    def pass_ms(self, count: int) -> None:
        self.wall += count * 1_000_000
        self.steady += count * 1_000_000


@dataclass(slots=True)
class Place:
    """Where a broker is opened, again and again."""

    kind: str
    folder: Path
    config: Config = field(default_factory=Config)
    hands: Hands = field(default_factory=Hands)
    opened: list[Broker] = field(default_factory=list)
    owner: Owner | None = None

    def open(self) -> Broker:
        """The first one, or a new one on what the last one left."""
        if self.kind == "memory":
            if not self.opened:
                self.opened.append(MemoryBroker(self.config, self.hands.times()))
            return self.opened[0]
        self.close()
        if self.kind in ("joined", "direct"):
            self.opened.append(self._join())
            return self.opened[-1]
        if self.kind == "log":
            self.opened.append(open_log(self.folder, self.config, self.hands.times()))
            return self.opened[-1]
        config = FILES if self.kind == "embedded files" else self.config
        self.opened.append(EmbeddedBroker.open(str(self.folder), config, times=self.hands.times()))
        return self.opened[-1]

    def close(self) -> None:
        for broker in self.opened:
            broker.close()
        self.opened.clear()
        if self.owner is not None:
            self.owner.close()
            self.owner = None

    def _join(self) -> Broker:
        """A new owner, and a client of it, which may know the folder that it shares with it."""
        folder = str(self.folder / "journals")
        self.owner = Owner.open(
            OwnedWorkspace(
                path=str(self.folder),
                workspace_id="test",
                token=TOKEN,
                kind="embedded",
                open_broker=lambda: EmbeddedBroker.open(
                    folder, self.config, times=self.hands.times()
                ),
                config=self.config,
            )
        )
        where = JournalAddress(
            address=self.owner.endpoint.address, workspace_id="test", token=TOKEN
        )
        if self.kind == "joined":
            return join_journals(where, self.config)
        config = self.config.with_options(journal_inline_bytes_max=1)
        return join_journals(replace(where, path=str(self.folder), workspace_id=None), config)


def open_log(folder: Path, config: Config, times: Times | None = None) -> LogBroker:
    """Journals whose ledger is a log in a folder."""
    store = LocalStore(str(folder))
    return LogBroker.open_log(store, "j", StoreLog(store, "j", config), config, times=times)


def column(values: Iterable[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(list(values), pa.int64())})


def values(fetched: Fetched) -> list[int]:
    return list(fetched.rows()["x"].to_pylist())


def read_all(broker: Broker, name: str, offset: int | None = None) -> list[int]:
    """All committed rows from an offset on, in many small reads."""
    at = broker.start_offset(name) if offset is None else offset
    found: list[int] = []
    while True:
        fetched = broker.read(name, at, rows_max=3)
        if fetched.next_offset == at:
            return found
        found += values(fetched)
        at = fetched.next_offset


Stamped = tuple[int | None, int, int, Flag]
"""Value, producer, clock, flag."""


def stamped(*rows: Stamped, hints: list[int] | None = None) -> pa.RecordBatch:
    """Rows with their own stamps; `hints` go on every ACK."""
    schema = stamped_schema(SCHEMA)
    columns = [
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.uint64()),
        pa.array([row[3].value for row in rows], pa.uint8()),
        pa.array(
            [hints or [] if row[3] is Flag.ACK else None for row in rows], schema.field(3).type
        ),
        pa.nulls(len(rows), schema.field(4).type),
        pa.nulls(len(rows), schema.field(5).type),
        pa.array([row[0] for row in rows], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def written(
    broker: Broker, name: str, given: Iterable[int], config: Config | None = None
) -> SegmentFile:
    """A file in the broker's adoption folder."""
    path = str(Path(broker.adoption_folder(), name))
    return write_file(path, [column(given)], SCHEMA, config=config)


def publish(
    broker: Broker,
    rows: Mapping[str, pa.RecordBatch],
    *commits: tuple[str, str, int, int | None],
    lease: Lease | None = None,
) -> Published:
    """One transaction; a commit is group, journal, offset, expected."""
    with broker.transaction(lease=lease) as t:
        for name, batch in rows.items():
            t.append(name, batch)
        for group, name, offset, expected in commits:
            t.commit(group, name, offset, expected=expected)
    assert t.result is not None
    return t.result
