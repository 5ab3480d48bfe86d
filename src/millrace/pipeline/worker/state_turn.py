"""A turn on a unit of a step with state: rows, changes of the state and offset go together.

Invariant: the state in memory runs ahead of what is published by one publish at most, and is given
back for the next turn only if everything was published.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from millrace.durations import ms
from millrace.errors import LeaseLost, TaskFailed
from millrace.faults import fault
from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.core import hops
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.journal_tail import cut_to_last_row
from millrace.pipeline.large.large_values import folder_of
from millrace.pipeline.restore.local_states import LocalState, StatePlace, give_back, take_state
from millrace.pipeline.restore.state_snapshots import last_snapshot, write_snapshot
from millrace.pipeline.run.job_journals import journals_of
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import TIMED
from millrace.pipeline.state.state_size import StateSize
from millrace.pipeline.state.state_work import StateWork, WorkFailed
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.read_ahead import ReadAhead, RowsAhead
from millrace.pipeline.worker.turn import LeasedUnit, now_us

TOTALS_KEPT: Final = 1_000
"""Totals of rows that were left out, and sizes, of which the last one counts: the others go."""


@dataclass(slots=True)
class _StateGathered:
    """Rows and changes that wait for their publish."""

    next: int
    since: float
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    state: list[pa.RecordBatch] = field(default_factory=list)
    skipped: SkippedRows | None = None
    bytes: int = 0


class StateTurn:
    """Runs the operator over pieces of rows; publishes rows and changes by time or size."""

    def __init__(
        self,
        unit: LeasedUnit,
        work: StateWork,
        ahead: ReadAhead,
        publisher: Publisher,
        place: StatePlace,
        quiet: QuietJournals,
    ) -> None:
        self.unit, self.work, self.ahead = unit, work, ahead
        self.publisher, self.place = publisher, place
        machine = publisher.machine
        read_to = None if machine.is_new else machine.at
        self._local = take_state(
            unit.broker, place, unit.config, journal=unit.journal.name, read_to=read_to
        )
        machine.state_end = self._local.at
        self._progress, self._drain_to = source_progress(unit, quiet)
        self._gathered = _StateGathered(publisher.at, time.monotonic())
        self._flying: Future[None] | None = None
        self._sent = publisher.at
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="millrace-publish")

    def run(self) -> TurnEnd:
        """Work until the turn is over."""
        try:
            ended = self._pieces()
            self._land()
        finally:
            self._threads.shutdown(wait=True)
        self._keep()
        return ended

    def _pieces(self) -> TurnEnd:
        while self.unit.goes_on():
            piece = self.ahead.next()
            if piece is None:
                break
            tally, name = self.unit.tally, self.unit.hop.name
            tally.add(tally.rows_in, name, piece.read)
            if piece.read:
                tally.row_bytes[name] = piece.bytes / piece.read
            try:
                self._take(piece)
            except QueryFailed as failed:
                event = self.unit.notes.failed(now_us(), failed.step, failed.offset, failed.failure)
                self._hand_over(event)
                return TurnEnd.FAILED
            self._hand_over_if_due()
        self._hand_over()
        return TurnEnd.OVER

    def _take(self, piece: RowsAhead) -> None:
        """Run the operator over a piece, and note what it gives."""
        gathered, rows = self._gathered, piece.rows
        if len(rows):
            begun = time.monotonic()
            try:
                progress = replace(self._progress, is_drained=piece.next >= self._drain_to)
                made = self.work.run(rows.with_offsets(), self._local.kept, progress)
            except (TaskFailed, WorkFailed) as error:
                traceback = error.traceback if isinstance(error, WorkFailed) else ""
                failure = Failure(place=0, error=str(error), traceback=traceback)
                raise QueryFailed(self.unit.hop.name, int(rows.offsets[0]), failure) from error
            out = HopRows.from_offsets(made.rows)
            if made.changes.num_rows:
                self._local.kept.change(made.changes)
                self._local.changed += made.changes.num_rows
                gathered.state.append(made.changes)
            if len(out):
                gathered.outputs.append(out.batch)
            gathered.bytes += int(out.batch.nbytes) + int(made.changes.nbytes)
            tally, name = self.unit.tally, self.unit.hop.name
            tally.add(tally.rows_out, name, len(out))
            if made.skipped.total:
                tally.add(tally.skipped, name, made.skipped.total)
                assert self._local.skipped is not None, "read with the state"
                self._local.skipped = self._local.skipped.plus(made.skipped)
                gathered.skipped = self._local.skipped
            tally.add_in_function(name, time.monotonic() - begun)
        gathered.next = piece.next

    def _hand_over_if_due(self) -> None:
        config, gathered = self.unit.config, self._gathered
        waited_ms = (time.monotonic() - gathered.since) * 1000
        is_due = gathered.bytes >= config.job_publish_bytes
        if is_due or waited_ms >= ms(config.job_publish_every):
            self._hand_over()

    def _hand_over(self, *events: JobEvent) -> None:
        """Publish what was gathered while the operator runs over the next rows."""
        gathered = self._gathered
        if gathered.next == self._sent and not events:
            return
        self._land()
        self._sent = gathered.next
        local, size = self._local, None
        if gathered.state and local.rows_noted != len(local.kept):
            size = StateSize.of(local.kept)
            local.rows_noted = size.rows
        change = UnitPublish(
            next=gathered.next,
            outputs=tuple(gathered.outputs),
            state=tuple(gathered.state),
            skipped=gathered.skipped,
            size=size,
            events=events,
        )
        local.totals += (gathered.skipped is not None) + (size is not None)
        self._flying = self._threads.submit(self.publisher.publish, change)
        self._gathered = _StateGathered(gathered.next, time.monotonic())

    def _land(self) -> None:
        """Wait for the publish in flight; raises its exception."""
        flying, self._flying = self._flying, None
        if flying is None:
            return
        flying.result()
        if self.publisher.machine.state_end is None:
            # Done, and where the changes end now is not known: the next turn reads the state again.
            raise LeaseLost(
                f"the answer to a publish of {self.unit.hop.name!r} was lost\n"
                "  to fix: nothing; the work goes on from the journals"
            )

    def _keep(self) -> None:
        """Keep the state for the next turn, if it is known to be what was published."""
        end = self.publisher.machine.state_end
        assert end is not None, "a publish without an answer ended the turn"
        local, config = self._local, self.unit.config
        local.at, local.read_to[self.unit.journal.name] = end, self.publisher.at
        if local.changed >= max(config.job_snapshot_changes, len(local.kept)):
            write_unit_snapshot(self.unit, self.place, local)
        if local.totals >= TOTALS_KEPT:
            local.totals = 0
            cut_to_last_row(self.unit.broker, self.place.skipped)
            cut_to_last_row(self.unit.broker, self.place.size)
        give_back(self.place, local, config)


@dataclass(slots=True)
class QuietJournals:
    """How long journals have had no new rows, as this process has seen them."""

    _ends: dict[str, tuple[int, float]] = field(default_factory=dict)

    def seconds(self, journal: str, end: int, now_s: float) -> float:
        """Note the end of a journal; how long it has been there."""
        known, since = self._ends.get(journal, (-1, now_s))
        if known != end:
            self._ends[journal] = end, now_s
            return 0.0
        return now_s - since


def source_progress(unit: LeasedUnit, quiet: QuietJournals) -> tuple[SourceProgress, int]:
    """The journals that feed a unit whose operator goes by event time, and the unit's end."""
    step, name = unit.hop.stateful, unit.journal.name
    if not unit.hop.keyed or step is None:
        return SourceProgress(), 0
    side = unit.hop.side_of(name)
    if not isinstance(step.operator, TIMED):
        return SourceProgress(side=side), 0
    keyed = unit.hop.keyed[side]
    # Dead letters come late, and hold no watermark back.
    numbers = {
        info.name: int(info.id)
        for info in journals_of(unit.broker, keyed)
        if not hops.is_retried(info.name, keyed.name)
    }
    positions = unit.broker.positions([(keyed.group, name) for name in numbers])
    sources = frozenset(numbers[p.journal] for p in positions if p.end > 0)
    waiting = frozenset(numbers[p.journal] for p in positions if p.backlog)
    idle_us, now_s = step.operator.idle_us, time.monotonic()
    quiet_s = {p.journal: quiet.seconds(p.journal, int(p.end), now_s) for p in positions}
    idle = frozenset(
        numbers[p.journal]
        for p in positions
        if idle_us is not None and not p.backlog and quiet_s[p.journal] * 1_000_000 >= idle_us
    )
    # Asked for last: what came here since then came from a journal that counts as waiting.
    end = int(unit.broker.end_offset(name))
    return SourceProgress(sources=sources, waiting=waiting, side=side, idle=idle), end


def write_unit_snapshot(unit: LeasedUnit, place: StatePlace, local: LocalState) -> None:
    """Write the state of a unit to files, record them, and remove the changes that they have."""
    local.changed = 0
    if not len(local.kept):
        return
    broker, hop = unit.broker, unit.hop
    rows = write_snapshot(
        local.kept,
        offset=local.at,
        at_us=now_us(),
        workspace=place.workspace,
        folder=folder_of(hop.job, hop.name),
    )
    fault("state.snapshot.after_files")
    with broker.transaction(unit.lease) as t:
        t.append(place.snapshots, rows)
    fault("state.snapshot.after_record")
    record = last_snapshot(broker, place.snapshots)
    assert record is not None
    broker.truncate_before(place.snapshots, record.first)
    broker.truncate_before(place.changes, record.offset)
    fault("state.snapshot.after_truncation")
