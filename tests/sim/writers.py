"""Producers that write by their own stamps: transactions, rollbacks, duplicates, late ACKs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from tests.sim.plan import KEYS, JournalPlan

from millrace.errors import StorageError
from millrace.journal.book_broker import Times
from millrace.journal.core import adopt_decisions, row_format
from millrace.journal.core.book import VERSION, Book, RangeKind
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.row_format import Flag
from millrace.journal.core.values import Truncated
from millrace.journal.memory import MemoryBroker

SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.int64())])
STAMPED: Final = row_format.stamped_schema(SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A row as it was written."""

    offset: int
    producer: int
    clock: int
    flag: Flag
    hints: tuple[int, ...] = ()
    k: int | None = None
    v: int | None = None


class SimBroker(MemoryBroker):
    """A broker that takes rows as they are, duplicates too, as topics of others do."""

    fails_to_tidy = False
    """Whether the next truncation of checkpoints is where its session dies."""

    def truncate_before(self, name: str, offset: int, *, force: bool = False) -> Truncated:
        """See `Broker.truncate_before`."""
        if self.fails_to_tidy and name.endswith("/checkpoints"):
            self.fails_to_tidy = False
            raise StorageError("it was to fail here")
        return super().truncate_before(name, offset, force=force)

    def has_moved(self, since: int) -> bool:
        """Whether `moved` would tell something."""
        return self._moves.is_after(since)

    def version(self) -> int:
        """What `watch` would give."""
        return self._book.count(VERSION)

    def append_raw(self, name: str, rows: pa.RecordBatch) -> int:
        """Store rows as they are; returns where."""

        def decide(book: Book) -> int:
            journal = book.journal(name)
            batch = row_format.give_offsets(rows, journal.end)
            acks = sum(flag == Flag.ACK for flag in rows["_mr_flag"].to_pylist())
            adopt_decisions.put_block(book, journal, batch, batch.num_rows - acks, RangeKind.MIXED)
            return int(journal.end)

        return self._group_commit.run(decide)


@dataclass(slots=True)
class JournalLog:
    """Everything that was ever written to a journal."""

    id: int
    plan: JournalPlan
    rows: list[Raw] = field(default_factory=list)
    is_gone: bool = False


@dataclass(slots=True)
class _Producer:
    id: int
    clock: int = 0
    committed: int = 0
    """The highest clock of its commits."""
    is_slow: bool = False
    """Its clocks count on from the last one, whatever the time."""
    journals: list[int] = field(default_factory=list)
    """Of its open transaction, by id."""
    pending: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """ACKs that it has yet to write: by journal, clock and hints."""
    last: dict[int, int] = field(default_factory=dict)
    """Of each journal, the clock of its last commit there."""
    highest: dict[int, int] = field(default_factory=dict)
    """Of each journal, the clock of its last row of a transaction there."""


class Writers:
    """All producers of a world, and the truth about what they wrote."""

    def __init__(self, broker: SimBroker, count: int, now_ns: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ns = now_ns
        self._producers = [_Producer(1_000 + number) for number in range(count)]
        self.logs: dict[int, JournalLog] = {}
        self._by_name: dict[str, int] = {}
        self._values = 0

    # Journals.
    def create(self, plan: JournalPlan) -> None:
        if plan.name not in self._by_name:
            made = self._broker.create(plan.name, SCHEMA, plan.labels)
            self._by_name[plan.name] = made.id
            self.logs[made.id] = JournalLog(made.id, plan)

    def delete(self, name: str) -> None:
        gone = self._by_name.pop(name, None)
        if gone is None:
            return
        self._broker.delete(name)
        self.logs[gone].is_gone = True
        for producer in self._producers:
            producer.pending.pop(gone, None)
            if gone in producer.journals:
                producer.journals.remove(gone)

    def id_of(self, name: str) -> int | None:
        return self._by_name.get(name)

    # Rows.
    def now(self, number: int, name: str, count: int) -> None:
        """Rows that commit themselves."""
        producer, journal = self._producers[number], self._by_name.get(name)
        if journal is None or journal in producer.journals or journal in producer.pending:
            return
        rows = [self._row(producer, journal, Flag.OUTSIDE) for _ in range(count)]
        self._append(journal, rows)
        self._committed(producer, journal, rows[-1].clock)

    def add(self, number: int, name: str, count: int) -> None:
        """Rows of a transaction."""
        producer, journal = self._producers[number], self._by_name.get(name)
        if journal is None or journal in producer.pending:
            return
        if journal not in producer.journals:
            producer.journals.append(journal)
        if count:
            rows = [self._row(producer, journal, Flag.CONTINUE) for _ in range(count)]
            self._append(journal, rows)
            producer.highest[journal] = rows[-1].clock

    def end(self, number: int, acks: int, draw: int) -> None:
        """Commit a transaction; only so many of its ACKs are written now."""
        producer = self._producers[number]
        if not producer.journals:
            return
        clock = self._clock(producer)
        for journal in producer.journals:
            others = tuple(each for each in producer.journals if each != journal)
            producer.pending[journal] = (clock, others)
        producer.journals = []
        producer.committed = clock
        for step in range(acks):
            self.ack(number, draw + step)

    def ack(self, number: int, draw: int) -> None:
        """Write an ACK that is due."""
        producer = self._producers[number]
        if not producer.pending:
            return
        journal = sorted(producer.pending)[draw % len(producer.pending)]
        clock, hints = producer.pending.pop(journal)
        ack = Raw(offset=0, producer=producer.id, clock=clock, flag=Flag.ACK, hints=hints)
        self._append(journal, [ack])
        self._committed(producer, journal, clock)

    def rollback(self, number: int, draw: int) -> None:
        """Roll a transaction back; its clocks may be used again."""
        producer = self._producers[number]
        for place, journal in enumerate(producer.journals):
            clock = producer.last.get(journal, 0) if draw & 1 else 0
            if place and draw & 4:
                producer.pending[journal] = (clock, ())
                continue
            ack = Raw(offset=0, producer=producer.id, clock=clock, flag=Flag.ACK)
            self._append(journal, [ack])
        if producer.journals and draw & 2:
            producer.is_slow = True
            producer.clock = producer.committed
        producer.journals = []

    def resend(self, number: int, draw: int) -> None:
        """Write some rows once more that are there already and that count."""
        producer = self._producers[number]
        logs = [each for each in self.logs.values() if not each.is_gone]
        if not logs:
            return
        log = logs[draw % len(logs)]
        is_open = log.id in producer.journals or log.id in producer.pending
        last = producer.last.get(log.id, 0)
        if is_open and draw & 64:
            last = max(last, producer.highest.get(log.id, 0))
        mine = [row for row in log.rows if row.producer == producer.id and row.clock <= last]
        again = mine[-1 - draw // 16 % 6 :]
        if is_open:
            again = [row for row in again if row.flag is not Flag.ACK]
        if again:
            first = self._broker.append_raw(log.plan.name, _batch(again))
            self._note(log, first, again)

    def finish(self) -> None:
        """End every transaction."""
        for number, producer in enumerate(self._producers):
            if number % 2:
                self.rollback(number, 1)
            self.end(number, 0, 0)
            while producer.pending:
                self.ack(number, 0)

    # Inside.
    def _clock(self, producer: _Producer) -> int:
        now = 0 if producer.is_slow else clock_at(self._now_ns())
        producer.clock = max(now, producer.clock + 1)
        return producer.clock

    def _row(self, producer: _Producer, journal: int, flag: Flag) -> Raw:
        self._values += 1
        fixed = self.logs[journal].plan.labels.get("k")
        k = self._values * 7 % KEYS if fixed is None else int(fixed)
        clock = self._clock(producer)
        return Raw(offset=0, producer=producer.id, clock=clock, flag=flag, k=k, v=self._values)

    def _committed(self, producer: _Producer, journal: int, clock: int) -> None:
        producer.last[journal] = max(clock, producer.last.get(journal, 0))
        producer.committed = max(producer.committed, clock)

    def _append(self, journal: int, rows: Sequence[Raw]) -> None:
        log = self.logs[journal]
        first = self._broker.append_raw(log.plan.name, _batch(rows))
        self._note(log, first, rows)

    @staticmethod
    def _note(log: JournalLog, first: int, rows: Sequence[Raw]) -> None:
        log.rows += [replace(row, offset=first + place) for place, row in enumerate(rows)]


def _batch(rows: Sequence[Raw]) -> pa.RecordBatch:
    columns = [
        pa.array([row.producer for row in rows], pa.int64()),
        pa.array([row.clock for row in rows], pa.uint64()),
        pa.array([row.flag.value for row in rows], pa.uint8()),
        pa.array(
            [list(row.hints) if row.flag is Flag.ACK else None for row in rows],
            pa.list_(pa.int64()),
        ),
        pa.nulls(len(rows), pa.binary()),
        pa.nulls(len(rows), pa.timestamp("us", tz="UTC")),
        pa.array([row.k for row in rows], pa.int64()),
        pa.array([row.v for row in rows], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STAMPED)


def broker_at(now_ns: Callable[[], int]) -> SimBroker:
    return SimBroker(times=Times(wall_ns=now_ns, steady_ns=now_ns))
