"""A turn on a unit of cheap steps: gathers rows, and publishes them while it makes more.

Invariant: one publish is in flight at a time, and offsets are committed in order.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.durations import ms
from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.large.large_values import loaded_bytes
from millrace.pipeline.sinks.sink_port import SinkWriter
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.publisher import Publisher, abandoned_on_error
from millrace.pipeline.worker.read_ahead import ReadAhead, RowsAhead
from millrace.pipeline.worker.step_chain import ChainOutput, StepChain
from millrace.pipeline.worker.turn import LeasedUnit, now_us


@dataclass(slots=True)
class _Gathered:
    """Rows that wait for their publish."""

    next: int
    since: float
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    letters: dict[str, list[Letter]] = field(default_factory=dict)
    bytes: int = 0


class CheapTurn:
    """Runs the steps over pieces of rows; publishes the results by time or size."""

    def __init__(
        self,
        unit: LeasedUnit,
        chain: StepChain,
        ahead: ReadAhead,
        publisher: Publisher,
        sink: SinkWriter | None,
        call_files: CallFiles,
    ) -> None:
        self.unit, self.chain, self.ahead = unit, chain, ahead
        self.publisher, self.sink, self.call_files = publisher, sink, call_files
        self.call_file = CallFile(0)
        self.writes_files = unit.hop.writes_files
        self._gathered = _Gathered(publisher.at, time.monotonic())
        self._flying: Future[None] | None = None
        self._sent = publisher.at
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="millrace-publish")

    def run(self) -> TurnEnd:
        """Work until the turn is over."""
        try:
            self.chain.recover(self.unit, self.call_files, self.publisher)
            self.call_file = self.chain.open_file(self.call_files)
            ended = self._pieces()
            self._land()
        finally:
            self._threads.shutdown(wait=True)
            self.call_file.remove()
        return ended

    def _pieces(self) -> TurnEnd:
        while self.unit.goes_on():
            try:
                piece = self.ahead.next()
            except QueryFailed as failed:
                failure = failed.failure
                self._hand_over(
                    self.unit.notes.failed(now_us(), failed.step, failed.offset, failure)
                )
                return TurnEnd.FAILED
            if piece is None:
                break
            self._measure(piece)
            ended = self._take_piece(piece)
            if ended is not None:
                return ended
            if self.ahead.is_dry():
                self._hand_over_if_due()
        self._hand_over()
        return TurnEnd.OVER

    def _take_piece(self, piece: RowsAhead) -> TurnEnd | None:
        """Run the steps over a piece; returns the reason if the turn ends.

        A turn that ends within a piece takes no other: rows that were left out lie between.
        """
        for rows, next_ in self.chain.cut(piece, self.unit):
            if not self.unit.goes_on():
                self._hand_over()
                return TurnEnd.OVER
            is_suspect = len(rows) and self.unit.deaths.is_suspect(int(rows.offsets[0]))
            if is_suspect:
                self._publish_now()  # What was done before is not done again for its sake.
            ended = self._take(rows, next_)
            if ended is not None:
                return ended
            if is_suspect:
                self._publish_now()
        return None

    def _take(self, rows: HopRows, next_: int) -> TurnEnd | None:
        """Run the steps over some rows; returns the reason if the turn ends."""
        through = self.chain.run(rows, self.unit, self.call_file)
        if through.failed is not None:
            return self._fail(through, rows)
        if through.out is None:
            if through.stuck is not None:
                return self._stuck(through.stuck)
            self._hand_over()
            return TurnEnd.OVER
        self._gather(through, next_)
        tally, name = self.unit.tally, self.unit.hop.name
        tally.add(tally.rows_out, name, len(through.out))
        if through.stuck is not None:
            return self._stuck(through.stuck)
        self._hand_over_if_due()
        return None

    def _gather(self, through: ChainOutput, next_: int) -> None:
        gathered = self._gathered
        gathered.next = next_
        if through.out is not None and len(through.out):
            gathered.outputs.append(through.out.batch)
            batch = through.out.batch
            gathered.bytes += loaded_bytes(batch) if self.writes_files else int(batch.nbytes)
        for step, some in through.letters.items():
            gathered.letters.setdefault(step, []).extend(some)

    def _fail(self, through: ChainOutput, rows: HopRows) -> TurnEnd:
        """Publish the rows before the row that failed, with the failure."""
        assert through.failed is not None
        step, offset, failure = through.failed
        before = rows.before(offset)
        if len(before):
            again = self.chain.run(before, self.unit, self.call_file)
            if again.out is not None:
                self._gather(again, offset)
        self._hand_over(self.unit.notes.failed(now_us(), step, offset, failure))
        return TurnEnd.FAILED

    def _stuck(self, step: str) -> TurnEnd:
        self._hand_over(self.unit.notes.event(now_us(), JobEventKind.STUCK, step))
        return TurnEnd.STUCK

    def _hand_over_if_due(self) -> None:
        config, gathered = self.unit.config, self._gathered
        if self.writes_files:
            is_due = gathered.bytes >= config.job_sink_bytes
        else:
            waited_ms = (time.monotonic() - gathered.since) * 1000
            is_due = gathered.bytes >= config.job_publish_bytes
            is_due |= waited_ms >= ms(config.job_publish_every)
        if is_due:
            self._hand_over()

    def _hand_over(self, *events: JobEvent) -> None:
        """Publish the gathered rows while the steps run over the next rows."""
        gathered = self._gathered
        if gathered.next == self._sent and not events:
            return
        self._land()
        first, self._sent = self._sent, gathered.next
        self._flying = self._threads.submit(self._publish, gathered, first, events)
        self._gathered = _Gathered(gathered.next, time.monotonic())
        if self.writes_files:
            self._land()  # Two files at once would take twice the memory.

    def _publish_now(self) -> None:
        self._hand_over()
        self._land()

    def _publish(self, gathered: _Gathered, first: int, events: tuple[JobEvent, ...]) -> None:
        change = UnitPublish(
            next=gathered.next,
            outputs=tuple(gathered.outputs) if self.sink is None else (),
            letters={step: tuple(letters) for step, letters in gathered.letters.items()},
            events=events,
        )
        prepared = None
        if self.sink is not None and gathered.outputs:
            journal_id = self.unit.journal.id
            prepared = self.sink.prepare(journal_id, gathered.outputs, first, gathered.next)
        with abandoned_on_error(prepared):
            self.publisher.publish(change, prepared=prepared)

    def _land(self) -> None:
        """Wait for the publish in flight; raises its exception."""
        flying, self._flying = self._flying, None
        if flying is not None:
            flying.result()

    def _measure(self, piece: RowsAhead) -> None:
        tally, name = self.unit.tally, self.unit.hop.name
        tally.add(tally.rows_in, name, piece.read)
        if piece.read:
            tally.row_bytes[name] = piece.bytes / piece.read
