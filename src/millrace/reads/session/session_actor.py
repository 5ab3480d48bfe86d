"""Does what the state of a session decides: with its members, its store and the journals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

import pyarrow as pa

from millrace.errors import JournalUnknown
from millrace.journal.broker import Broker
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber
from millrace.reads.model.session_messages import ToSession
from millrace.reads.session.checkpoint_store import CheckpointStore
from millrace.reads.session.journal_reads import Send
from millrace.reads.session.members_port import Members
from millrace.reads.session.session_state import (
    FreeRows,
    HandOut,
    SessionAction,
    SessionState,
    SetDiskLimit,
    StoreCheckpoint,
    StoreCommit,
)

_LOG: Final = logging.getLogger(__name__)


class SessionActor:
    """A session over members that are run elsewhere. Any thread may call it."""

    def __init__(
        self, state: SessionState, members: Members, store: CheckpointStore, broker: Broker
    ) -> None:
        self._state = state
        self._members = members
        self._store = store
        self._broker = broker
        self._lock = threading.RLock()
        self._failure: BaseException | None = None
        self.changed = threading.Condition(self._lock)

    @property
    def state(self) -> SessionState:
        """For looking at, under `changed`."""
        return self._state

    def list_journals(self, now_ms: int, since: int = -1) -> int:
        """List the journals, or those that came and went since, and start to read selected ones.

        Returns the version that was listed, to be watched from.
        """
        with self._lock:
            deferred = self._state.deferred_reports
        listed = self._broker.changed_journals(since)
        with self._lock:
            first_offsets = self._broker.start_offsets(self._state.unread(listed.made))
            self._perform(
                self._state.on_journals(
                    listed.made, first_offsets, now_ms, deferred=deferred, gone=listed.gone
                )
            )
            self.changed.notify_all()  # A caller may have waited for a journal that is gone.
        return listed.version

    def begin(self) -> None:
        """Call this once, after the journals were listed first."""
        with self._lock:
            self._perform(self._state.begin())

    def on_message(self, slice_: int, message: ToSession, now_ms: int) -> None:
        """Take in a message of a slice."""
        with self._lock:
            self._state.on_message(slice_, message, now_ms)
            self.changed.notify_all()

    @property
    def needs_journals(self) -> bool:
        """Whether a report names a journal that was made after journals were last listed."""
        return self._state.deferred_reports > 0

    def fail(self, error: BaseException) -> None:
        """End the session; the first failure is the one that is raised."""
        with self._lock:
            self._failure = self._failure or error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise if the session has failed."""
        if self._failure is not None:
            raise self._failure

    def next_checkpoint(self) -> Checkpoint | None:
        """The next checkpoint, stored and ready to be read; None if there is nothing new now."""
        with self._lock:
            self.check()
            return self._perform(self._state.next_checkpoint())

    def store_due_commit(self) -> None:
        """Store the commit that waits for a checkpoint, if one does."""
        with self._lock:
            self.check()
            self._perform(self._state.commit_due())

    def tick(self, now_ms: int, *, hint_wait_ms: int, is_wanted: bool) -> None:
        """Call this now and then; see `SessionState.on_tick`."""
        with self._lock:
            self._perform(
                self._state.on_tick(now_ms, hint_wait_ms=hint_wait_ms, is_wanted=is_wanted)
            )

    def release(self, producer: int | None) -> None:
        """Let transactions go that wait for another journal, of one producer or of all."""
        with self._lock:
            self._state.on_release(producer)
            self.changed.notify_all()

    def abandon(self, producer: int) -> None:
        """Count the open transaction of a producer as rolled back."""
        with self._lock:
            self.check()
            self._perform(self._state.on_abandon(producer))

    def read(self, member: int, number: CheckpointNumber) -> Iterator[pa.RecordBatch]:
        """The rows that a checkpoint makes visible to a member, in order."""
        with self._lock:
            self.check()
            visible = self._state.visible(number)
        return self._members.read(member, visible)

    def commit(self, number: CheckpointNumber) -> None:
        """Everything up to a checkpoint was processed: never show it again, free its disk."""
        with self._lock:
            self.check()
            self._perform(self._state.on_commit(number))

    def commit_with_next(self, number: CheckpointNumber) -> None:
        """The same, stored with the next checkpoint."""
        with self._lock:
            self.check()
            self._store.check_prepared(number)
            self._state.on_commit_with_next(number)

    def _perform(self, actions: Sequence[SessionAction]) -> Checkpoint | None:
        """Do these in order; returns the checkpoint that is handed out, if one is."""
        checkpoint: Checkpoint | None = None
        for action in actions:
            match action:
                case Send(slice_, message):
                    self._members.send(slice_, message)
                case SetDiskLimit(is_on):
                    self._members.set_disk_limit(is_on=is_on)
                case StoreCheckpoint(delta, None):
                    self._store.prepare(delta)
                    _LOG.debug("stored checkpoint %d", delta.number)
                case StoreCheckpoint(delta, commit):
                    assert commit is not None
                    self._commit_and_prepare(commit, delta)
                case HandOut(delta):
                    checkpoint = delta
                case StoreCommit():
                    self._commit(action)
                case FreeRows(shown, rolled_back):
                    self._members.release(shown, rolled_back)
                case _:
                    assert_never(action)
        return checkpoint

    def _commit_and_prepare(self, commit: StoreCommit, delta: Checkpoint) -> None:
        try:
            whole = self._store.commit(commit.number, commit.floors, prepare=delta)
        except JournalUnknown:
            self._commit(commit)
            self._store.prepare(delta)
        else:
            self._perform(self._state.on_committed(commit.number, whole))

    def _commit(self, commit: StoreCommit) -> None:
        try:
            whole = self._store.commit(commit.number, commit.floors)
        except JournalUnknown:
            if commit.is_retry:
                raise
            existing = {journal.id for journal in self._broker.watch(-1).journals}
            self._perform(self._state.on_journals_gone(commit.number, existing))
        else:
            self._perform(self._state.on_committed(commit.number, whole))
