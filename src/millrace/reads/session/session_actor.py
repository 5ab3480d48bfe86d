"""Runs a session: its journals, its members, its store of checkpoints, and its users."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.errors import JournalUnknown, UserError
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.reads.model.checkpoint import (
    Checkpoint,
    CheckpointNumber,
    resume_offsets,
)
from millrace.reads.model.clock_windows import Visible, between
from millrace.reads.model.session_messages import Abandon, Pressure, Reported, ToSession
from millrace.reads.model.tags import Ints, Tag, journal_of, journals_of
from millrace.reads.session.checkpoint_store import CheckpointStore, Floor
from millrace.reads.session.members_port import Members
from millrace.reads.session.session_state import Send, SessionState


@dataclass(frozen=True, slots=True)
class _Handed:
    """A checkpoint that was handed out: everything shown before it, and with it."""

    delta: Checkpoint
    before: Checkpoint
    whole: Checkpoint


class SessionActor:
    """A session over members that somebody else runs. Any thread may call it."""

    def __init__(
        self, state: SessionState, members: Members, store: CheckpointStore, broker: Broker
    ) -> None:
        self._state = state
        self._members = members
        self._store = store
        self._broker = broker
        self._lock = threading.RLock()
        self._handed: dict[CheckpointNumber, _Handed] = {}
        self._deferred: list[tuple[int, Reported]] = []
        self._failure: BaseException | None = None
        self._is_limit_off = False
        self.changed = threading.Condition(self._lock)

    # Journals.
    def look(self, now_ms: int) -> int:
        """Look at the journals there are, and start to read those that are selected.

        Returns the version that was seen, to be watched from.
        """
        with self._lock:
            deferred = len(self._deferred)
        watched = self._broker.watch(-1)
        with self._lock:
            ready, self._deferred = self._deferred[:deferred], self._deferred[deferred:]
            # What these name was made before, so if it is not in the list it is gone again.
            named = [int(each.progress.hints.journal.max(initial=0)) for _, each in ready]
            highest = max([0, *named, *(each.id for each in watched.journals)])
            unread = self._state.unread(watched.journals)
            starts = self._broker.start_offsets(unread)
            self._send(self._state.on_journals(watched.journals, highest, starts))
            self._state.check_prepared()
            for slice_, message in ready:
                self.on_message(slice_, message, now_ms)
            self.changed.notify_all()  # Somebody may have waited for a journal that is gone.
        return watched.version

    def begin(self) -> None:
        """Once, after the journals were looked at first."""
        with self._lock:
            if self._state.is_recovering:
                self._set_limit_off(off=True)

    # Slices.
    def on_message(self, slice_: int, message: ToSession, now_ms: int) -> None:
        """A slice says something."""
        with self._lock:
            match message:
                case Reported(progress):
                    if self._state.misses_journals(progress) or any(
                        each == slice_ for each, _ in self._deferred
                    ):
                        self._deferred.append((slice_, message))
                    else:
                        self._state.on_reported(progress, now_ms)
                case Pressure(is_pushed_back):
                    self._state.on_pressure(slice_, is_pushed_back=is_pushed_back)
            self.changed.notify_all()

    @property
    def wants_journals(self) -> bool:
        """Whether a report names a journal that was not there when journals were last looked at."""
        return bool(self._deferred)

    def fail(self, error: BaseException) -> None:
        """End the session; the first failure is the one that is told."""
        with self._lock:
            self._failure = self._failure or error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise if the session has failed."""
        if self._failure is not None:
            raise self._failure

    # Checkpoints.
    def next_checkpoint(self) -> Checkpoint | None:
        """The next checkpoint, stored and ready to be read; None if there is nothing new now."""
        with self._lock:
            self.check()
            is_replay = self._state.is_recovering
            delta = self._state.next_checkpoint()
            if delta is None:
                return None
            if not is_replay:
                self._store.prepare(delta)
            self._handed[delta.number] = _Handed(delta, self._state.before, self._state.whole)
            sends = self._state.after_replay()
            if not self._state.is_recovering:
                self._set_limit_off(off=False)
            self._send(sends)
            return delta

    def relieve(self) -> None:
        """Call this now and then while a checkpoint is wanted: it ends what would last for good.

        When everything that was handed out is committed, and nothing new can be, all that lies in
        the queues waits for rows that have yet to be read. Then no disk limit may hold these back.
        """
        with self._lock:
            if not self._handed:
                self._set_limit_off(off=True)

    def abandon(self, producer: int) -> None:
        """Count what a producer has open as rolled back."""
        with self._lock:
            self.check()
            for slice_ in range(self._state.members):
                self._members.send(slice_, Abandon(producer))

    def visible(self, number: CheckpointNumber) -> Visible:
        """What a checkpoint makes visible."""
        with self._lock:
            self.check()
            if number not in self._handed:
                there = ", ".join(map(str, self._handed)) or "none"
                raise UserError(
                    f"checkpoint {number} is not there to be read\n  handed out and not "
                    f"committed: {there}\n  to fix: read a checkpoint before it is committed"
                )
            handed = self._handed[number]
            return between(handed.before, handed.whole)

    def read(self, member: int, number: CheckpointNumber) -> Iterator[pa.RecordBatch]:
        """The rows that a checkpoint makes visible to a member, in order."""
        return self._members.read(member, self.visible(number))

    def commit(self, number: CheckpointNumber) -> None:
        """Everything up to a checkpoint was processed: never show it again, free its disk."""
        with self._lock:
            self.check()
            floors = self._floors(number)
            try:
                whole = self._store.commit(number, floors)
            except JournalUnknown:  # One was deleted just now, and another may have its name.
                whole = self._store.commit(number, self._still_there(floors))
            self._handed = {n: each for n, each in self._handed.items() if n > number}
            self._members.release(whole.shown, whole.rolled_back)

    @property
    def state(self) -> SessionState:
        """For looking at, under `changed`."""
        return self._state

    def _floors(self, number: CheckpointNumber) -> list[Floor]:
        """Where the journals are needed from on that moved up to a checkpoint."""
        if number not in self._handed:
            return []
        deltas = [each.delta for n, each in self._handed.items() if n <= number]
        moved = [journals_of(tags) for each in deltas for tags in (each.reads.tag, each.shown.tag)]
        journals = np.unique(np.concatenate(moved))
        offsets = resume_offsets(_of_journals(self._handed[number].whole, journals))
        named = self._state.names()
        tags = np.array(list(named), np.int64)
        floors: dict[JournalId, Offset] = {}
        names: dict[JournalId, str] = {}
        for tag in tags[np.isin(journals_of(tags), journals)].tolist():
            # Of several bindings the lowest counts, also one of which nothing was shown yet.
            journal, begun = journal_of(tag), self._state.started()[Tag(tag)]
            offset = offsets.get(tag, begun)
            names[journal] = named[Tag(tag)]
            floors[journal] = min(floors.get(journal, offset), offset)
        return [Floor(journal, names[journal], offset) for journal, offset in floors.items()]

    def _still_there(self, floors: Sequence[Floor]) -> list[Floor]:
        """Leave journals out that are gone."""
        there = {each.id for each in self._broker.watch(-1).journals}
        return [each for each in floors if each.id in there]

    def _set_limit_off(self, *, off: bool) -> None:
        if off != self._is_limit_off:
            self._is_limit_off = off
            self._members.set_limit_off(off=off)

    def _send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._members.send(send.slice, send.message)


def _of_journals(whole: Checkpoint, journals: Ints) -> Checkpoint:
    reads, shown = whole.reads, whole.shown
    return Checkpoint(
        number=whole.number,
        reads=reads.take(np.isin(journals_of(reads.tag), journals)),
        shown=shown.take(np.isin(journals_of(shown.tag), journals)),
    )
