"""The state machine of a slice. Pure: the clock is an argument.

Rows come in as they are read, wait in the governor until it is their turn, are sequenced, and go to
the queues of the members that own them. A commit among them starts a flush; when every queue has
answered it, the slice reports the commits to the session.

Invariant: a report says nothing of a row that is not in its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.journal.core.row_format import OFFSET, Flag
from millrace.limits import KIB
from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.fetch_plan import Floats, fetch_size
from millrace.reads.model.flush import FlushCycle
from millrace.reads.model.governor import Governor, ReadyRows
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.numbering import UNKNOWN
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
from millrace.reads.model.tags import Ints, Tag, bindings_of, journal_of, journals_of
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.reads.slice.chunks import Chunks, chunk_of
from millrace.reads.slice.fetches import Fetch, FetchedTags, TaggedRows
from millrace.reads.slice.flush_report import Gathering
from millrace.reads.slice.outbox import Outbox
from millrace.reads.slice.read_positions import ReadPositions
from millrace.reads.slice.shared_fetches import shared_fetches

READS_FETCH_JOURNALS_MAX: Final = 2_048
"""Most journals that are read in one call."""
_PIECE_BYTES_MIN: Final = 4 * KIB
_FULL_SHARE: Final = 16
"""With a full buffer a call reads this part of what it reads otherwise."""
_LET_GO_ROWS: Final = 32_768
"""So many rows for each queue are worked on at a time: few enough for the processor's caches."""
_MANY: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """How much a slice holds and sends."""

    buffer_bytes_max: int
    fetch_bytes_max: int
    fetch_bytes_min: int
    """Of one journal, unless there are too many for the buffer."""
    fetch_journals_max: int
    window_bytes_max: int
    message_bytes_target: int

    def bytes_least(self, journals: int) -> int:
        """What is read of a journal at least, of so many that hold rows back.

        Pieces of all take three quarters of the buffer; the rest is for rows that wait.
        """
        share = self.buffer_bytes_max * 3 // 4 // max(1, journals)
        return min(self.fetch_bytes_min, max(_PIECE_BYTES_MIN, share))

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
        self._reads = ReadPositions()
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
        self.outboxes = [Outbox(limits.window_bytes_max) for _ in range(queues)]
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
        for tag in starts.tag.tolist():
            self._by_journal.setdefault(journal_of(tag), []).append(Tag(tag))
        bindings = bindings_of(starts.tag)
        priorities = np.array([bound.priority for bound in self._bindings], np.int64)[bindings]
        self._reads.start(starts.tag, message.names, starts.offset, starts.until, priorities)
        for number in np.unique(bindings).tolist():
            bound = self._bindings[number]
            tags = starts.tag[bindings == number]
            self._governor.start(tags, bound.priority, is_delayed=bound.delay > 0)
        done = starts.tag[(starts.until != NONE) & (starts.offset >= starts.until)]
        self._set_left(done, np.zeros(len(done)))
        self._sequences.start(shown.tag, shown.producer, shown.clock)

    def _stop(self, tag: Tag) -> None:
        read = self._reads.stop(tag)
        if read is not None:
            self._governor.stop(tag, read.priority)
            self._sequences.forget(tag)
            self._by_journal[journal_of(tag)].remove(tag)

    def _continue(self) -> None:
        tags = self._reads.tags()
        numbers = self._reads.find(tags)
        bounded = self._reads.until[numbers] != NONE
        self._reads.until[numbers] = NONE
        self._set_left(tags[bounded], np.full(np.count_nonzero(bounded), _MANY))

    def _abandon(self, producer: int) -> None:
        pairs, begins, highest = self._sequences.abandon(producer)
        tags = self._sequences.numbering.firsts[pairs]
        ends = self._reads.next[self._reads.find(tags)]
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
        bytes_least = limits.bytes_least(found.holding)
        size = fetch_size(
            found,
            rows=min(limits.fetch_bytes_max, max(room, limits.fetch_bytes_max // _FULL_SHARE))
            // row_bytes,
            rows_least=max(1, bytes_least // row_bytes),
            is_full=room <= 0,
        )
        tags = self._shared(found.tags, size.tags, is_full=room <= 0)
        offsets = self._reads.next[self._reads.find(tags)]
        bytes_each = max(bytes_least, size.rows_each * row_bytes)
        names = self._reads.names(tags)
        return Fetch(tags=tags, names=names, offsets=offsets, bytes_each=bytes_each)

    def on_moved(self, journals: Iterable[int] | None) -> None:
        """These journals may have more to read; None: any of them."""
        tags = self._tags_of(journals)
        numbers = self._reads.find(tags)
        is_done = self._reads.next[numbers] == self._reads.until[numbers]
        self._set_left(tags, np.where(is_done, 0, _MANY))

    def on_fetched(self, fetched: FetchedTags) -> None:
        """Take rows that were read, and the end of each journal."""
        sharing, self._sharing = self._sharing, {}
        for rows in fetched.rows:
            for binding, part, batch in rows.by_binding(sharing):
                self._buffer(binding, part, batch)
        tags, nexts, ends = fetched.shared(sharing)
        numbers = self._reads.find(tags)
        # Others were stopped while they were read, or not reached by a read for another tag.
        taken = (numbers != UNKNOWN) & (self._reads.next[numbers] <= nexts)
        tags, nexts, ends, numbers = tags[taken], nexts[taken], ends[taken], numbers[taken]
        until = self._reads.until[numbers]
        self._reads.next[numbers] = np.where(until == NONE, nexts, np.minimum(nexts, until))
        self._set_left(tags, self._reads.rows_left(tags, ends))

    def _buffer(self, binding: int, part: TaggedRows, rows: pa.RecordBatch) -> None:
        """Hold the rows that were not read yet."""
        tags = np.repeat(part.tags, part.counts)
        unread = self._reads.unread(part.tags, part.counts, rows[OFFSET].to_numpy())
        if unread is not None:
            tags, rows = tags[unread], rows.filter(pa.array(unread))
        if not len(tags):
            return
        bound = self._bindings[binding]
        owners = self._routing.owners(binding, rows)
        chunk = chunk_of(binding, tags, rows, owners, self._sequences.number)
        due = chunk.stamped.clocks + np.uint64(bound.delay)
        self._governor.add(bound.priority, self._chunks.add(chunk), tags, due)

    # From queues.
    def on_reply(self, queue: int, reply: RowsAccepted | Flushed) -> list[SliceAction]:
        """A queue has accepted rows, or has everything up to a flush."""
        match reply:
            case RowsAccepted(number):
                self.outboxes[queue].on_taken(number)
            case Flushed(cycle):
                if self._flush.on_flushed(queue, cycle):
                    assert self._in_flight is not None
                    done, self._in_flight = self._in_flight, None
                    return [Reported(done)]
        return []

    # What follows.
    def step(self, now: int) -> Iterator[SliceAction]:
        """Send the rows that can go at this clock, and flush if a row committed.

        All actions have to be taken. Rows are copied as they are: the memory of a message that was
        sent serves the next one.
        """
        while not self._is_blocked():
            ready = self._governor.next_rows(now)
            if not len(ready):
                break
            yield from self._let_go(ready)
            self._chunks.keep(self._governor.chunks())
            yield from self._sent()
        cycle = self._flush.begin()
        if cycle is not None:
            self._in_flight = self._gathering.take(self._sequences)
            for outbox in self.outboxes:
                outbox.flush(cycle)
        yield from self._sent()
        if self._is_blocked() != self._is_pushed_back:
            self._is_pushed_back = not self._is_pushed_back
            yield Pressure(self._is_pushed_back)

    def next_due(self) -> int | None:
        """The clock at which the next row is due that waits for its delay.

        None while queues push back: then an answer of theirs is what to wait for.
        """
        return None if self._is_blocked() else self._governor.next_due()

    # Inside.
    def _let_go(self, ready: ReadyRows) -> Iterator[ToQueue]:
        """Sequence rows as they came, those of a tag together; then send them in their order."""
        rows_max = _LET_GO_ROWS * len(self.outboxes)
        keep = np.concatenate([self._sequenced(*piece) for piece in ready.as_they_came(rows_max)])
        message_rows = max(1, self._limits.message_bytes_target // self._chunks.row_bytes)
        for places in ready.in_order(keep).pieces(rows_max):
            for routed in self._chunks.routed(places, message_rows):
                yield from self._post(routed.owner, routed.rows)

    def _sequenced(self, chunk: int, places: Ints) -> npt.NDArray[np.bool_]:
        """Apply rows of a chunk to their transactions; which of them may become visible."""
        rows, pairs = self._chunks.stamped(chunk, places)
        done = self._sequences.take(rows, pairs)
        hints, hinted = self._hints(chunk, places, rows, done)
        self._gathering.add(rows, done, hints, hinted)
        if len(done.commits) or len(done.rolled_back):
            self._flush.want()
        binding = self._chunks.binding(chunk)
        keep: npt.NDArray[np.bool_] = rows.clocks >= self._lowest[binding]
        keep &= (rows.clocks <= self._highest[binding]) & done.keep
        return keep

    def _post(self, owner: int, rows: pa.RecordBatch) -> Iterator[ToQueue]:
        """Cut rows into messages, and send those that the queue has room for."""
        pieces = max(1, rows.nbytes // self._limits.message_bytes_target)
        count = -(-rows.num_rows // pieces)
        for begin in range(0, rows.num_rows, count):
            self.outboxes[owner].rows(rows.slice(begin, count))
            yield from (ToQueue(owner, message) for message in self.outboxes[owner].ready())

    def _hints(
        self, chunk: int, places: Ints, rows: Stamped, done: RowOutcomes
    ) -> tuple[Hints, npt.NDArray[np.bool_]]:
        """The hints of commits, as far as they matter here; and which commits have any."""
        hinted = np.zeros(len(done.commits), np.bool_)
        which = np.flatnonzero(rows.flags[done.commits] == Flag.ACK)
        if not len(which):
            return Hints.empty(), hinted
        assert self._catalog is not None, "rows before a catalog"
        acks = done.commits[which]
        of_ack, journals = self._chunks.hints(chunk, places[acks])
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

    def _sent(self) -> Iterator[ToQueue]:
        for number, outbox in enumerate(self.outboxes):
            yield from (ToQueue(number, message) for message in outbox.ready())

    def _is_blocked(self) -> bool:
        return any(outbox.is_blocked for outbox in self.outboxes)

    def _set_left(self, tags: Ints, left: Floats) -> None:
        """How many rows can be read of tags at once, as far as is known."""
        priorities = self._reads.priority[self._reads.find(tags)]
        for priority in np.unique(priorities).tolist():
            which = priorities == priority
            self._governor.set_left(priority, tags[which], left[which])

    def _shared(self, candidates: Ints, count: int, *, is_full: bool) -> Ints:
        """The tags to fetch for the first candidates: one, where a journal has several bindings."""
        self._sharing = {}
        if not self._is_shared:
            return candidates[:count]
        tags = [Tag(tag) for tag in candidates[:count].tolist()]
        chosen = dict.fromkeys(tags)
        journals = {journal_of(tag) for tag in tags}
        others = candidates[count:].tolist()
        chosen |= dict.fromkeys(Tag(tag) for tag in others if journal_of(tag) in journals)
        if not is_full:
            # Of lower priorities as well, where they stand at the same row.
            for tag in tags:
                chosen |= dict.fromkeys(self._beside(tag))
        leads = shared_fetches(list(chosen), {tag: self._reads.of(tag) for tag in chosen})
        self._sharing = {tag: together for tag, together in leads.items() if len(together) > 1}
        return np.array(list(leads), np.int64)

    def _beside(self, tag: Tag) -> list[Tag]:
        """Tags of other priorities that read the same journal from the same row on."""
        read = self._reads.of(tag)
        others = [(other, self._reads.of(other)) for other in self._by_journal[journal_of(tag)]]
        return [
            tag
            for tag, other in others
            if other.priority != read.priority
            and other.next == read.next
            and read.next not in (other.until, read.until)
        ]

    def _tags_of(self, journals: Iterable[int] | None) -> Ints:
        if journals is None:
            return self._reads.tags()
        known = (tag for journal in journals for tag in self._by_journal.get(journal, ()))
        return np.fromiter(known, np.int64)
