"""The state machine of a slice. Pure: the clock is an argument.

Rows come in as they are read, wait in the governor until it is their turn, are sequenced, and go to
the queues of the members that own them. A commit among them starts a flush; when every queue has
answered it, the slice reports the commits to the session.

Invariant: a report says nothing of a row that is not in its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.values import Fetched
from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.fetch_plan import fetch_size
from millrace.reads.model.flush import FlushCycle
from millrace.reads.model.governor import Governor, RowOrder
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.routing import Routing
from millrace.reads.model.sequence import RowOutcomes, Sequences, Stamped
from millrace.reads.model.session_messages import (
    Abandon,
    CatalogUpdate,
    Continue,
    Pressure,
    Reported,
    StartReads,
    StopReads,
    ToSession,
    ToSlice,
)
from millrace.reads.model.slice_progress import Hints, SliceProgress
from millrace.reads.model.tags import Ints, Tag, binding_of, bindings_of, journal_of, journals_of
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.reads.slice.chunks import Chunks, chunk_of
from millrace.reads.slice.flush_report import Gathering
from millrace.reads.slice.outbox import Outbox
from millrace.reads.slice.shared_fetches import JournalRead, shared_fetches

READS_FETCH_JOURNALS_MAX: Final = 2_048
"""Most journals that are read in one call."""
_FULL_SHARE: Final = 16
"""With a full buffer a call reads this part of what it reads otherwise."""
_MANY: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How much a slice holds and sends."""

    buffer_bytes_max: int
    fetch_bytes_max: int
    fetch_bytes_min: int
    """Of one journal."""
    fetch_journals_max: int
    window_bytes_max: int
    message_bytes_target: int

    @classmethod
    def of(cls, config: Config) -> SliceLimits:
        """From the configuration."""
        return cls(
            buffer_bytes_max=config.reads_buffer_bytes_max,
            fetch_bytes_max=config.reads_fetch_bytes_max,
            fetch_bytes_min=config.reads_fetch_bytes_min,
            fetch_journals_max=READS_FETCH_JOURNALS_MAX,
            window_bytes_max=config.reads_window_bytes_max,
            message_bytes_target=config.reads_message_bytes_target,
        )


@dataclass(frozen=True, slots=True)
class ToQueue:
    """Send this to the queue of a member."""

    queue: int
    message: QueueRows | Flush


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Read these journals from these offsets on, every row as it was stored."""

    offsets: Mapping[Tag, tuple[str, Offset]]
    bytes_each: int
    """About so much of each journal, and of each at least a row that is there."""


SliceAction = ToQueue | ToSession


class SliceState:
    """One slice of a session."""

    def __init__(
        self, read: CoordinatedRead, queues: int, routing: Routing, limits: SliceLimits
    ) -> None:
        self._bindings = read.bindings
        self._lowest = np.array([binding.lowest_clock for binding in read.bindings], np.uint64)
        self._highest = np.array([binding.highest_clock for binding in read.bindings], np.uint64)
        self._limits = limits
        self._routing = routing
        self._catalog: JournalCatalog | None = None
        self._reads: dict[Tag, JournalRead] = {}
        self._by_journal: dict[int, list[Tag]] = {}
        self._is_shared = len(read.bindings) > 1
        self._sharing: dict[Tag, tuple[Tag, ...]] = {}
        """All tags that the rows of a tag's fetch are for, itself too, if there are several."""
        self._governor = Governor()
        self._chunks = Chunks()
        self._sequences = Sequences()
        self._gathering = Gathering()
        self._flush = FlushCycle(queues)
        self._in_flight: SliceProgress | None = None
        self._outboxes = [Outbox(limits.window_bytes_max) for _ in range(queues)]
        self._is_pushed_back = False

    # From the session.
    def on_message(self, message: ToSlice) -> None:
        """Take in a message of the session."""
        match message:
            case CatalogUpdate(catalog):
                self._catalog = catalog
            case StartReads():
                self._start(message)
            case StopReads(tags):
                for tag in tags.tolist():
                    self._stop(Tag(tag))
            case Continue():
                self._continue()
            case Abandon(producer):
                self._abandon(producer)

    def _start(self, message: StartReads) -> None:
        starts, shown = message.starts, message.shown
        for (tag, offset, until), name in zip(starts.rows(), message.names, strict=True):
            assert tag not in self._reads, tag
            priority = self._bindings[binding_of(tag)].priority
            self._reads[Tag(tag)] = JournalRead(name, priority, Offset(offset), until)
            self._by_journal.setdefault(journal_of(tag), []).append(Tag(tag))
        bindings = bindings_of(starts.tag)
        for number in np.unique(bindings).tolist():
            bound = self._bindings[number]
            tags = starts.tag[bindings == number]
            self._governor.start(tags, bound.priority, is_delayed=bound.delay > 0)
        done = starts.tag[(starts.until != NONE) & (starts.offset >= starts.until)]
        self._set_left({Tag(tag): 0 for tag in done.tolist()})
        self._sequences.start(shown.tag, shown.producer, shown.clock)

    def _stop(self, tag: Tag) -> None:
        read = self._reads.pop(tag, None)
        if read is not None:
            self._governor.stop(tag, read.priority)
            self._sequences.forget(tag)
            self._by_journal[journal_of(tag)].remove(tag)

    def _continue(self) -> None:
        bounded = [tag for tag, read in self._reads.items() if read.until != NONE]
        for tag in bounded:
            self._reads[tag].until = NONE
        self._set_left(dict.fromkeys(bounded, _MANY))

    def _abandon(self, producer: int) -> None:
        pairs, begins, highest = self._sequences.abandon(producer)
        tags = self._sequences.numbering.firsts[pairs]
        ends = np.array([self._reads[Tag(tag)].next for tag in tags.tolist()], np.int64)
        producers = np.full(len(pairs), producer, np.int64)
        if len(pairs):
            gone = RolledBack(tags, producers, begins, ends, highest)
            self._gathering.roll_back(pairs, gone)
            self._flush.want()

    # From journals.
    def next_fetch(self, now: int) -> Fetch | None:
        """What to read next, after a `step`; None if there is nothing to read, or no room for it.

        With a full buffer, the journals that hold the rows back are read all the same, a little at
        a time: no row could leave the buffer otherwise.
        """
        if self._is_blocked():
            return None
        limits = self._limits
        room = limits.buffer_bytes_max - self._chunks.nbytes
        found = self._governor.candidates(limits.fetch_journals_max, now)
        if found is None:
            return None
        row_bytes = self._chunks.row_bytes
        size = fetch_size(
            found,
            rows=min(limits.fetch_bytes_max, max(room, limits.fetch_bytes_max // _FULL_SHARE))
            // row_bytes,
            rows_least=max(1, limits.fetch_bytes_min // row_bytes),
            is_full=room <= 0,
        )
        tags = self._shared(found.tags, size.tags, is_full=room <= 0)
        offsets = {tag: (self._reads[tag].name, self._reads[tag].next) for tag in tags}
        bytes_each = max(limits.fetch_bytes_min, size.rows_each * row_bytes)
        return Fetch(offsets=offsets, bytes_each=bytes_each)

    def on_moved(self, journals: Iterable[int] | None) -> None:
        """These journals may have more to read; None: any of them."""
        reads = {tag: self._reads[tag] for tag in self._tags_of(journals)}
        self._set_left(
            {tag: 0 if read.next == read.until else _MANY for tag, read in reads.items()}
        )

    def on_fetched(self, fetched_by_tag: Mapping[Tag, Fetched]) -> None:
        """Take rows that were read, and the end of each journal."""
        by_binding: dict[int, list[tuple[Tag, pa.RecordBatch]]] = {}
        left: dict[Tag, float] = {}
        parts = [
            (tag, fetched)
            for lead, fetched in fetched_by_tag.items()
            for tag in self._sharing.pop(lead, (lead,))
        ]
        for tag, fetched in parts:
            read = self._reads.get(tag)
            if read is None or read.next > fetched.next_offset:
                continue  # Stopped while it was read, or not reached by a read for another tag.
            batches = [read.part(batch) for batch in fetched.batches]
            read.next = fetched.next_offset
            if read.until != NONE:
                read.next = Offset(min(read.next, read.until))
            tagged_batches = by_binding.setdefault(binding_of(tag), [])
            tagged_batches += [(tag, batch) for batch in batches if batch.num_rows]
            end = fetched.end_offset
            left[tag] = max(0, (end if read.until == NONE else min(end, read.until)) - read.next)
        self._set_left(left)
        for binding, tagged_batches in by_binding.items():
            if tagged_batches:
                self._buffer(binding, tagged_batches)

    def _buffer(self, binding: int, parts: Sequence[tuple[Tag, pa.RecordBatch]]) -> None:
        batches = [batch for _, batch in parts]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        tags = np.repeat(
            np.array([tag for tag, _ in parts], np.int64), [batch.num_rows for batch in batches]
        )
        bound = self._bindings[binding]
        chunk = chunk_of(binding, tags, rows, self._routing.owners(binding, rows))
        number = self._chunks.add(chunk)
        due = chunk.stamped.clocks + np.uint64(bound.delay)
        self._governor.add(bound.priority, number, tags, due)

    # From queues.
    def on_reply(self, queue: int, reply: RowsAccepted | Flushed) -> list[SliceAction]:
        """A queue has accepted rows, or has everything up to a flush."""
        match reply:
            case RowsAccepted(number):
                self._outboxes[queue].on_taken(number)
            case Flushed(cycle):
                if self._flush.on_flushed(queue, cycle):
                    assert self._in_flight is not None
                    done, self._in_flight = self._in_flight, None
                    return [Reported(done)]
        return []

    # What follows.
    def step(self, now: int) -> list[SliceAction]:
        """Send the rows that can go at this clock, and flush if a row committed."""
        actions: list[SliceAction] = []
        while not self._is_blocked():
            places = self._governor.next_rows(now)
            if not len(places):
                break
            self._let_go(places)
            actions += self._sent()
        cycle = self._flush.begin()
        if cycle is not None:
            self._in_flight = self._gathering.take(self._sequences)
            for outbox in self._outboxes:
                outbox.flush(cycle)
        actions += self._sent()
        if self._is_blocked() != self._is_pushed_back:
            self._is_pushed_back = not self._is_pushed_back
            actions.append(Pressure(self._is_pushed_back))
        return actions

    def next_due(self) -> int | None:
        """The clock at which the next row is due that waits for its delay.

        None while queues push back: then an answer of theirs is what to wait for.
        """
        return None if self._is_blocked() else self._governor.next_due()

    # Inside.
    def _let_go(self, places: RowOrder) -> None:
        rows = self._chunks.stamped(places)
        done = self._sequences.take(rows)
        hints, hinted = self._hints(places, rows, done)
        self._gathering.add(rows, done, hints, hinted)
        if len(done.commits) or len(done.rolled_back):
            self._flush.want()
        bindings = bindings_of(rows.tags)
        keep = done.keep & (rows.clocks >= self._lowest[bindings])
        keep &= rows.clocks <= self._highest[bindings]
        if keep.any():
            kept = places
            if not keep.all():
                kept = RowOrder(chunk=places.chunk[keep], row=places.row[keep])
            for routed in self._chunks.routed(kept):
                self._post(routed.owner, routed.rows)
        self._chunks.keep(self._governor.chunks())

    def _post(self, owner: int, rows: pa.RecordBatch) -> None:
        """Cut rows into messages."""
        pieces = max(1, rows.nbytes // self._limits.message_bytes_target)
        count = -(-rows.num_rows // pieces)
        for begin in range(0, rows.num_rows, count):
            self._outboxes[owner].rows(rows.slice(begin, count))

    def _hints(
        self, places: RowOrder, rows: Stamped, done: RowOutcomes
    ) -> tuple[Hints, npt.NDArray[np.bool_]]:
        """The hints of commits, as far as they matter here; and which commits have any."""
        hinted = np.zeros(len(done.commits), np.bool_)
        which = np.flatnonzero(rows.flags[done.commits] == Flag.ACK)
        if not len(which):
            return Hints.empty(), hinted
        assert self._catalog is not None, "rows before a catalog"
        acks = done.commits[which]
        of_ack, journals = self._chunks.hints(
            RowOrder(chunk=places.chunk[acks], row=places.row[acks])
        )
        tags = rows.tags[acks]
        twice = np.flatnonzero(self._catalog.read_twice(tags))
        of_ack = np.concatenate([of_ack, twice])
        journals = np.concatenate([journals, journals_of(tags[twice])])
        matter = journals > self._catalog.highest
        matter |= self._catalog.read_in_cohort(bindings_of(tags[of_ack]), journals)
        of_ack, journals = of_ack[matter], journals[matter]
        hinted[which[of_ack]] = True
        places_of = acks[of_ack]
        hints = Hints(tags[of_ack], rows.producers[places_of], rows.clocks[places_of], journals)
        return hints, hinted

    def _sent(self) -> list[SliceAction]:
        return [
            ToQueue(number, message)
            for number, outbox in enumerate(self._outboxes)
            for message in outbox.ready()
        ]

    def _is_blocked(self) -> bool:
        return any(outbox.is_blocked for outbox in self._outboxes)

    def _set_left(self, left: Mapping[Tag, float]) -> None:
        """How many rows can be read of tags at once, as far as is known."""
        by_priority: dict[int, list[Tag]] = {}
        for tag in left:
            by_priority.setdefault(self._reads[tag].priority, []).append(tag)
        for priority, tags in by_priority.items():
            rows = np.array([left[tag] for tag in tags], np.float64)
            self._governor.set_left(priority, np.array(tags, np.int64), rows)

    def _shared(self, candidates: Ints, count: int, *, is_full: bool) -> list[Tag]:
        """The tags to fetch for the first candidates: one, where a journal has several bindings."""
        tags = [Tag(tag) for tag in candidates[:count].tolist()]
        self._sharing = {}
        if not self._is_shared:
            return tags
        chosen = dict.fromkeys(tags)
        journals = {journal_of(tag) for tag in tags}
        others = candidates[count:].tolist()
        chosen |= dict.fromkeys(Tag(tag) for tag in others if journal_of(tag) in journals)
        if not is_full:
            # Of lower priorities as well, where they stand at the same row.
            for tag in tags:
                chosen |= dict.fromkeys(self._beside(tag))
        leads = shared_fetches(list(chosen), self._reads)
        self._sharing = {tag: together for tag, together in leads.items() if len(together) > 1}
        return list(leads)

    def _beside(self, tag: Tag) -> list[Tag]:
        """Tags of other priorities that read the same journal from the same row on."""
        read = self._reads[tag]
        return [
            other
            for other in self._by_journal[journal_of(tag)]
            if self._reads[other].priority != read.priority
            and self._reads[other].next == read.next
            and read.next not in (self._reads[other].until, read.until)
        ]

    def _tags_of(self, journals: Iterable[int] | None) -> Iterable[Tag]:
        if journals is None:
            return list(self._reads)
        return [tag for journal in journals for tag in self._by_journal.get(journal, ())]
