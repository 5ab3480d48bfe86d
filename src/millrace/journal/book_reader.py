"""The calls of a broker that change nothing, answered from its book.

Invariant: a reader sees a row only after the request that wrote it was saved.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from millrace.config import Config
from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.changed_journals import ChangedLately
from millrace.journal.core import read_limits, sequencing
from millrace.journal.core.book import MOVED, VERSION, Book, Journal
from millrace.journal.core.call_numbers import LatestCalls
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import NO_JOURNAL, Offset, Selector
from millrace.journal.core.read_limits import ReadLimits, RowCollector, Stored
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import Formats, ManyRows, many_rows
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    ChangedJournals,
    Fetched,
    Isolation,
    JournalInfo,
    Missing,
    MovedJournals,
    OpenIn,
    Position,
    ProducerProgress,
    Watched,
)
from millrace.journal.group_commit import GroupCommit
from millrace.journal.moved_journals import MovedLately
from millrace.wakeup import WakeUp

Labels = Mapping[str, str | Sequence[str]]


class BookReader(ABC):
    """The reading half of a broker. Subclasses say where rows are stored."""

    def __init__(self, book: Book, config: Config) -> None:
        self._book = book
        self._config = config
        self._formats = Formats()
        self._latest_calls = LatestCalls(secrets.randbits(62), config.journal_call_producers_max)
        self._moves = MovedLately(config.journal_moves_max)
        self._changes = ChangedLately(config.journal_moves_max, book)
        limit = config.journal_commit_bytes_max
        self._group_commit = GroupCommit(
            book,
            self._save,
            limit,
            self._afterwards,
            self._note,
            gather_ms_max=config.journal_commit_gather_ms_max,
        )

    @abstractmethod
    def _save(self, draft: Book) -> None:
        """Make a draft durable, or raise and leave everything as it was."""

    def _afterwards(self) -> None:  # noqa: B027 - a broker may have nothing to do
        """Do what is due after a commit."""

    @abstractmethod
    def _ranges(self, journal: Journal, offset: Offset) -> Iterable[Stored]:
        """Stored ranges in order, from the one that holds this offset on."""

    def _ranges_to_read(
        self, journal: Journal, offset: Offset, _rows_max: int, _bytes_max: int
    ) -> Iterable[Stored]:
        """The same ranges, for a read within these limits."""
        return self._ranges(journal, offset)

    @abstractmethod
    def _load(self, journal: Journal, stored: Stored) -> Sequence[pa.RecordBatch]:
        """The rows of a range, with their system fields."""

    def get(self, name: str) -> JournalInfo:
        """See `Broker.get`."""
        return self._book.journal(name).info()

    def watch(
        self,
        seen: int,
        *,
        prefix: str = "",
        labels: Labels | None = None,
        timeout_s: float = 0,
        stop: WakeUp | None = None,
    ) -> Watched:
        """See `Broker.watch`."""
        self._group_commit.wait(
            lambda: self._book.count(VERSION) != seen, timeout_s, (VERSION,), stop
        )
        return Watched(version=self._list_version(), journals=self.list(prefix, labels))

    def changed_journals(self, since: int) -> ChangedJournals:
        """See `Broker.changed_journals`."""
        with self._group_commit.settled:
            # So that a journal that a row names is among them.
            changed = self._changes.after(since)
        if changed is None:
            version = self._list_version()
            changed = ChangedJournals(version=version, made=self.list(), gone=None)
        return changed

    def _list_version(self) -> int:
        """The version, to be asked for before the list: what changes in between is seen twice."""
        with self._group_commit.settled:
            return self._book.count(VERSION)

    def wait_for_rows(self, after: Mapping[str, int], *, timeout_s: float) -> bool:
        """See `Broker.wait_for_rows`."""

        def has_new_rows() -> bool:
            return any(self.end_offset(name) > offset for name, offset in after.items())

        return self._group_commit.wait(has_new_rows, timeout_s, after)

    def moved(self, since: int, *, timeout_s: float, stop: WakeUp | None = None) -> MovedJournals:
        """See `Broker.moved`."""
        if not self._group_commit.wait(
            lambda: self._moves.is_after(since), timeout_s, (MOVED,), stop
        ):
            # A caller that polls a stopped broker must not hear for ever that nothing moves.
            self._group_commit.check()
        return self._moves.after(since)

    # Reading.
    def read(
        self,
        name: str,
        offset: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """See `Broker.read`."""
        request = ReadRequest(offsets={name: offset}, rows_max=rows_max, bytes_max=bytes_max)
        limits = request.limits(self._config)
        return self._fetch(name, Offset(offset), limits.rows, limits.bytes, isolation)

    def read_many(self, request: ReadRequest) -> ManyRows:
        """See `Broker.read_many`."""
        fetched = self._fetched(request, request.limits(self._config))
        return many_rows(_checked_problems(fetched, request.missing), self._formats)

    def locate(self, request: ReadRequest) -> ManyRows:
        """See `Broker.locate`: nothing is in files that others see."""
        return self.read_many(request)

    def standing(self, producer: ProducerId) -> ProducerProgress:
        """See `Broker.standing`."""
        mark = self._latest_calls.mark()
        with self._group_commit.settled:
            states = ((id_, some.get(producer)) for id_, some in self._book.sequences.all())
            pending = {id_: state for id_, state in states if state and state.open}
            journals = self._book.journals.all() if pending else ()
            names = [journal for _, journal in journals if journal.id in pending]
            clock = self._book.producer(producer).clock
        open_in = tuple(_open_in(journal, pending[journal.id]) for journal in names)
        return ProducerProgress(clock=clock, open=open_in, mark=mark)

    def lease_epoch(self, name: str) -> int:
        """See `Broker.lease_epoch`."""
        with self._group_commit.settled:
            state = self._book.leases.get(name)
        return 0 if state is None else state.epoch

    def start_offset(self, name: str) -> Offset:
        """See `Broker.start_offset`."""
        return self._book.journal(name).start

    def start_offsets(self, names: Sequence[str]) -> dict[str, Offset]:
        """See `Broker.start_offsets`."""
        starts = {}
        for name in names:
            with suppress(JournalUnknown):
                starts[name] = self.start_offset(name)
        return starts

    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """See `Broker.end_offset`."""
        journal = self._book.journal(name)
        return journal.end if isolation == "raw" else self._book.stable_end(journal)

    # Groups.
    def committed(self, group: str, name: str) -> Offset | None:
        """See `Broker.committed`."""
        return (self._book.groups.get(self._book.journal(name).id) or {}).get(group)

    def min_committed(self, name: str) -> Offset | None:
        """See `Broker.min_committed`."""
        return self._book.min_committed(self._book.journal(name).id)

    def backlog(self, group: str, name: str) -> int:
        """See `Broker.backlog`."""
        return self._position(group, name).backlog

    def positions(self, wanted: Sequence[tuple[str, str]]) -> tuple[Position, ...]:
        """See `Broker.positions`."""
        return tuple(self._position(group, name) for group, name in wanted)

    # Inside.
    def _note(self, draft: Book) -> None:
        """The book has taken a draft over: its journals have moved."""
        self._changes.note(draft)
        self._moves.note(draft.moved())

    def _position(self, group: str, name: str) -> Position:
        with self._group_commit.settled:
            journal = self._book.journal(name)
            at = (self._book.groups.get(journal.id) or {}).get(group)
            end = self._book.stable_end(journal)
            gone = self._book.rolled_back.get(journal.id) or ()
        begin = journal.start if at is None else max(at, journal.start)
        try:
            backlog = self._rows_between(journal, begin, end, gone)
        except OffsetOutOfRange:
            if self._book.journal(name).start == journal.start:
                raise
            return self._position(group, name)  # Truncated while its rows were counted.
        return Position(
            group=group,
            journal=name,
            start=journal.start,
            end=end,
            committed=at,
            backlog=backlog,
        )

    def _fetch(
        self, name: str, offset: Offset, rows_max: int, bytes_max: int, isolation: Isolation
    ) -> Fetched:
        raw = isolation == "raw"
        with self._group_commit.settled:
            journal = self._book.journal(name)
            end = journal.end if raw else self._book.stable_end(journal)
            gone = None if raw else self._book.rolled_back.get(journal.id) or ()
        if not journal.start <= offset <= journal.end:
            raise out_of_range(journal, offset)
        taking = RowCollector(
            offset=offset, end=end, rows_left=rows_max, bytes_left=bytes_max, rolled_back=gone
        )
        if offset < end:
            ranges = self._ranges_to_read(journal, offset, rows_max, bytes_max)
            taking.take(ranges, lambda stored: self._load(journal, stored))
        return Fetched(
            journal=name,
            id=journal.id,
            schema=journal.schema,
            batches=tuple(taking.batches),
            next_offset=taking.offset,
            end_offset=end,
        )

    def _fetched(self, request: ReadRequest, limits: ReadLimits) -> Iterator[Fetched]:
        """What there is of many journals, until a limit is reached, and what is wrong with some."""
        rows_left, bytes_left = limits.rows, limits.bytes
        for name, offset in request.offsets.items():
            if rows_left <= 0 or bytes_left <= 0:
                return
            size = min(bytes_left, limits.bytes_each)
            try:
                fetched = self._fetch(name, Offset(offset), rows_left, size, request.isolation)
            except (JournalUnknown, OffsetOutOfRange) as problem:
                yield Fetched.failed(name, Offset(offset), problem)
                continue
            if fetched.next_offset > offset:
                yield fetched
                rows_left -= fetched.num_rows
                bytes_left -= sum(batch.nbytes for batch in fetched.batches)

    def _rows_between(
        self, journal: Journal, begin: Offset, end: Offset, rolled_back: Sequence[RolledBackRange]
    ) -> int:
        """Committed rows in [begin, end), which are all below the stable end."""
        if begin >= end:
            return 0

        def load(stored: Stored) -> Sequence[pa.RecordBatch]:
            return self._load(journal, stored)

        def before(offset: Offset) -> int:
            if offset >= journal.end:
                return journal.rows
            first = next(iter(self._ranges(journal, offset)))
            return read_limits.rows_before(offset, first, load)

        count = before(end) - before(begin)
        for gone in rolled_back:
            if gone.begin < end and gone.end > begin:
                ranges = self._ranges(journal, max(gone.begin, begin))
                count -= read_limits.rolled_back_rows(gone, begin, end, ranges, load)
        return count

    # Last, since it hides the built-in name from what follows.
    def list(self, prefix: str = "", labels: Labels | None = None) -> tuple[JournalInfo, ...]:
        """See `Broker.list`."""
        if prefix == NO_JOURNAL:
            return ()  # Asked for again and again, by callers that want the version alone.
        selector = Selector(prefix, labels or {})
        chosen = [
            journal
            for _, journal in self._book.journals.all()
            if selector.takes(journal.name, journal.labels)
        ]
        return tuple(journal.info() for journal in sorted(chosen, key=lambda journal: journal.name))


def _open_in(journal: Journal, state: sequencing.Sequence) -> OpenIn:
    assert state.open is not None
    return OpenIn(
        journal=journal.name,
        id=journal.id,
        begin=state.open.begin,
        highest=state.open.highest,
        last_commit=state.last_commit,
    )


def _checked_problems(fetched: Iterable[Fetched], missing: Missing) -> Iterator[Fetched]:
    """Raise the first problem if `missing` says so; otherwise keep problems in the answers."""
    for rows in fetched:
        if rows.problem is not None and missing == "raise":
            raise rows.problem
        yield rows


def out_of_range(journal: Journal, offset: Offset) -> OffsetOutOfRange:
    """Word the error for a read outside a journal."""
    why = "was truncated" if offset < journal.start else "is not there yet"
    return OffsetOutOfRange(
        f"offset {offset} of journal {journal.name!r} {why}\n"
        f"  offsets there: {journal.start} to {journal.end}\n"
        "  to fix: read from one of these"
    )
