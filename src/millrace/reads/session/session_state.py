"""The state machine of a session: events in, actions out. Pure: times are arguments.

Invariant: a checkpoint that was handed out and not committed is handed out again, exactly, before
anything new is; until then no slice reads beyond it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.errors import DataLost, HintsUnresolved
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.checkpoint import (
    BEGINNING,
    Checkpoint,
    CheckpointNumber,
    RolledBack,
    ShownClock,
    merge,
    without_done,
)
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.frontier import Frontier, UnmetHint
from millrace.reads.model.session_messages import (
    Abandon,
    Continue,
    Pressure,
    Reported,
    ToSession,
)
from millrace.reads.model.slice_progress import SliceProgress
from millrace.reads.model.tags import journals_of
from millrace.reads.session.handed_out import Floor, HandedOut
from millrace.reads.session.journal_reads import JournalReads, Send, StartContext

_NAMED_MAX: Final = 10
"""How many waiting transactions an error names."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a session begins."""

    committed: Checkpoint
    """Whole."""
    prepared: tuple[Checkpoint, ...] = ()
    """Deltas that were handed out and not committed, in order."""
    last_number: CheckpointNumber = BEGINNING
    """The highest number ever given out."""


# What the actor does.
@dataclass(frozen=True, slots=True)
class SetDiskLimit:
    """Have every queue keep to its disk limit, or accept rows beyond it."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class StoreCommit:
    """Store that everything up to a checkpoint was processed, and what journals are needed from."""

    number: CheckpointNumber
    floors: tuple[Floor, ...]
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Store a checkpoint, before it is handed out; and a commit with it, if one waits."""

    delta: Checkpoint
    commit: StoreCommit | None = None


@dataclass(frozen=True, slots=True)
class HandOut:
    """Give this checkpoint to the caller: it is stored."""

    delta: Checkpoint


@dataclass(frozen=True, slots=True)
class FreeRows:
    """Let every queue free the rows that are shown."""

    shown: ShownClock
    """What changed since the last time."""
    rolled_back: RolledBack


SessionAction = Send | SetDiskLimit | StoreCheckpoint | HandOut | StoreCommit | FreeRows


class SessionState:
    """One session over its slices."""

    def __init__(self, read: CoordinatedRead, members: int, resumed: Resumed) -> None:
        self.coordinated_read = read
        self.journals = JournalReads(read, members, resumed.committed)
        self.frontier = Frontier(read.cohorts(), resumed.committed)
        self.whole = resumed.committed
        """All checkpoints handed out, merged, with every rolled-back range that their rows need."""
        self.handed_out = HandedOut()
        self._prepared = list(resumed.prepared)
        self._number = resumed.last_number
        self._commit_due: CheckpointNumber | None = None
        """A commit that waits for the next checkpoint, to be stored with it."""
        self._freed = resumed.committed.number
        """Queues were told what checkpoints up to this one show."""
        self._replay_ends = _read_offsets(merge(resumed.committed, *resumed.prepared))
        self._deferred: list[tuple[int, Reported]] = []
        """Reports that name journals which are not in the catalog yet, with their slice."""
        self._pushed_back: set[int] = set()
        self._is_limit_on = True
        self._stalled_since_ms: int | None = None

    # For reading, between events.
    @property
    def is_recovering(self) -> bool:
        """Whether a prepared checkpoint has yet to be handed out again."""
        return bool(self._prepared)

    @property
    def deferred_reports(self) -> int:
        """How many reports wait for the next list of journals."""
        return len(self._deferred)

    def schema(self) -> pa.Schema:
        """The columns of the rows that members read, as far as journals are known."""
        return self.journals.schema()

    def unread(self, journals: Sequence[JournalInfo]) -> list[str]:
        """Those of these journals of which `on_journals` needs the first offset."""
        return self.journals.unread(journals)

    def visible(self, number: CheckpointNumber) -> Visible:
        """The rows that a checkpoint makes visible; refuses one that is not handed out."""
        return self.handed_out.visible(number)

    def unmet(self) -> tuple[UnmetHint, ...]:
        """Transactions that wait for a journal, oldest first."""
        return self.frontier.unmet()

    # Journals.
    def on_journals(
        self,
        journals: Sequence[JournalInfo],
        first_offsets: Mapping[str, Offset],
        now_ms: int,
        *,
        deferred: int = 0,
        gone: Sequence[int] | None = None,
    ) -> list[SessionAction]:
        """The journals there are now, listed when so many reports were deferred already.

        With `gone`, these are the journals that were made since the last list, and `gone` are the
        ids of those that went.
        """
        ready, self._deferred = self._deferred[:deferred], self._deferred[deferred:]
        # Journals that these reports name were made before the list: if not in it, they are gone.
        named = [int(report.progress.hints.journal.max(initial=0)) for _, report in ready]
        highest = max([0, *named, *(journal.id for journal in journals)])
        if gone is None:
            stopped = self.journals.gone(journals, highest)
        else:
            highest = max(highest, self.journals.catalog.highest)
            stopped = self.journals.changed(journals, gone, highest)
        if stopped:
            self.frontier.forget(np.array(stopped, np.int64))
        context = StartContext(
            first_offsets=first_offsets,
            shown=self.whole.shown,
            replay_ends=self._replay_ends if self._prepared else None,
        )
        sends = self.journals.announce() + self.journals.stop(stopped)
        sends += self.journals.start(journals, context)
        self._check_prepared()
        for _, report in ready:
            self.on_reported(report.progress, now_ms)  # Before those of its slice that came later.
        return [*sends]

    def begin(self) -> list[SessionAction]:
        """Reading begins: no disk limit may hold back rows that are replayed."""
        return self._limit(is_on=False) if self._prepared else []

    # Slices.
    def on_message(self, slice_: int, message: ToSession, now_ms: int) -> None:
        """A slice reports its progress, or whether queues push it back."""
        match message:
            case Reported(progress):
                is_behind = any(number == slice_ for number, _ in self._deferred)
                if is_behind or self._misses_journals(progress):
                    self._deferred.append((slice_, message))
                else:
                    self.on_reported(progress, now_ms)
            case Pressure(is_pushed_back=True):
                self._pushed_back.add(slice_)
            case Pressure():
                self._pushed_back.discard(slice_)

    def on_reported(self, progress: SliceProgress, now_ms: int) -> None:
        """Take in a slice's report; the catalog knows every journal that it names."""
        assert not self._misses_journals(progress)
        self.frontier.apply(progress, self.journals.catalog, now_ms)

    # Checkpoints.
    def next_checkpoint(self) -> list[SessionAction]:
        """A caller wants the next checkpoint; without `HandOut` there is nothing to show yet."""
        stores: list[SessionAction] = []
        continues: list[SessionAction] = []
        if self._prepared:
            if not self.frontier.reaches(self._prepared[0]):
                return []
            delta = self._prepared.pop(0)
            self.frontier.hand_out(delta)
            if not self._prepared:
                continues = self._each_slice(Continue())
        else:
            new_delta = self.frontier.next_delta(CheckpointNumber(self._number + 1))
            if new_delta is None:
                return []
            delta = new_delta
            self._number = delta.number
            stores = [StoreCheckpoint(delta, self._due())]
        before = without_done(self.whole)
        self.whole = merge(before, delta)
        self.handed_out.add(delta, before, self.whole)
        limit = [] if self._prepared else self._limit(is_on=True)
        return [*stores, *limit, *continues, HandOut(delta)]

    def on_tick(self, now_ms: int, *, hint_wait_ms: int, is_wanted: bool) -> list[SessionAction]:
        """Time has passed; `is_wanted`: a caller waits for a checkpoint.

        Raises if hints stay unmet for longer than the limit. When everything that was handed out is
        committed, and nothing new can be, all rows in the queues wait for rows that have yet to be
        read. Then no disk limit may hold these back.
        """
        self._check_stall(now_ms, hint_wait_ms, is_wanted=is_wanted)
        if is_wanted and not self.handed_out:
            return self._limit(is_on=False)
        return []

    def on_commit(self, number: CheckpointNumber) -> list[SessionAction]:
        """A caller has processed everything up to a checkpoint."""
        return [StoreCommit(number, tuple(self._floors(number)))]

    def on_commit_with_next(self, number: CheckpointNumber) -> None:
        """The same, to be stored with the next checkpoint, or by `commit_due`."""
        self._commit_due = max(number, self._commit_due or number)

    def commit_due(self) -> list[SessionAction]:
        """No checkpoint came to store a commit with: store it by itself."""
        due = self._due()
        return [] if due is None else [due]

    def on_journals_gone(
        self, number: CheckpointNumber, existing: Collection[int]
    ) -> list[SessionAction]:
        """A commit was refused as a journal was deleted just now: commit without it.

        Another journal may have its name, so `existing` has the ids of the journals there are.
        """
        floors = [floor for floor in self._floors(number) if floor.id in existing]
        return [StoreCommit(number, tuple(floors), is_retry=True)]

    def on_committed(self, number: CheckpointNumber, whole: Checkpoint) -> list[SessionAction]:
        """A commit is stored; `whole` is the merged checkpoint."""
        self.handed_out.remove_upto(number)
        news = whole.shown.take(whole.shown.number > self._freed)
        self._freed = max(self._freed, number)
        return [FreeRows(news, whole.rolled_back)]

    # Transactions that do not end.
    def on_release(self, producer: int | None = None) -> tuple[UnmetHint, ...]:
        """Let unmet hints go, of one producer or of all; returns which."""
        return self.frontier.release(producer)

    def on_abandon(self, producer: int) -> list[SessionAction]:
        """Count the open transaction of a producer as rolled back."""
        return self._each_slice(Abandon(producer))

    # Inside.
    def _due(self) -> StoreCommit | None:
        number, self._commit_due = self._commit_due, None
        return None if number is None else StoreCommit(number, tuple(self._floors(number)))

    def _misses_journals(self, progress: SliceProgress) -> bool:
        """Whether a report names a journal that was made after the catalog."""
        return bool((progress.hints.journal > self.journals.catalog.highest).any())

    def _each_slice(self, message: Continue | Abandon) -> list[SessionAction]:
        return [Send(number, message) for number in range(self.journals.members)]

    def _limit(self, *, is_on: bool) -> list[SessionAction]:
        if is_on == self._is_limit_on:
            return []
        self._is_limit_on = is_on
        return [SetDiskLimit(is_on)]

    def _floors(self, number: CheckpointNumber) -> list[Floor]:
        return self.handed_out.floors(number, self.journals.names, self.journals.started)

    def _check_prepared(self) -> None:
        """Refuse to replay a checkpoint over journals that are gone."""
        for prepared in self._prepared:
            is_there = np.isin(prepared.shown.tag, self.journals.catalog.tags())
            if not is_there.all():
                lost = sorted(set(journals_of(prepared.shown.tag[~is_there]).tolist()))
                raise DataLost(
                    f"checkpoint {prepared.number} of coordinated read "
                    f"{self.coordinated_read.name} cannot be replayed\n"
                    f"  journals that are gone: ids {', '.join(map(str, lost[:10]))}\n"
                    "  to fix: begin anew under another name"
                )

    def _check_stall(self, now_ms: int, limit_ms: int, *, is_wanted: bool) -> None:
        """Fail if hints stay unmet for longer than the limit.

        The time counts while a checkpoint is wanted and no slice is pushed back.
        """
        unmet = self.frontier.unmet()
        if not unmet or not is_wanted or self._pushed_back:
            self._stalled_since_ms = None
            return
        if self._stalled_since_ms is None:
            self._stalled_since_ms = now_ms
        since_ms = max(self._stalled_since_ms, unmet[0].since_ms)
        if now_ms - since_ms >= limit_ms:
            raise self._unresolved(unmet, now_ms - since_ms)

    def _unresolved(self, unmet: Sequence[UnmetHint], waited_ms: int) -> HintsUnresolved:
        name_of = self.journals.name_of
        lines = [
            f"  producer {hint.producer:012x} committed clock {hint.clock} in "
            f"{name_of(hint.source)}, not yet in {name_of(hint.target)}\n"
            for hint in unmet[:_NAMED_MAX]
        ]
        if len(unmet) > _NAMED_MAX:
            lines.append(f"  and {len(unmet) - _NAMED_MAX} more\n")
        return HintsUnresolved(
            f"coordinated read {self.coordinated_read.name} waited {waited_ms // 1000} s for "
            f"transactions over several journals to become whole\n{''.join(lines)}"
            "  to fix: let their producers recover, or release them with session.release(producer)"
        )


def _read_offsets(whole: Checkpoint) -> dict[int, int]:
    return dict(zip(whole.reads.tag.tolist(), whole.reads.offset.tolist(), strict=True))
