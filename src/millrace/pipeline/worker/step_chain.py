"""The cheap steps of a hop, one after the other, over a piece of a unit's rows.

They record nothing, so after a crash they simply run again. In front of an expensive step they make
at most one row of a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.config import Config
from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import BatchOutcome, Failure, KnownCalls
from millrace.pipeline.core.call_recovery import death_of
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import (
    FilterStep,
    KeyBy,
    Map,
    Select,
    StateStep,
    UnionStep,
)
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.fused_query import FusedQuery
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.read_ahead import RowsAhead
from millrace.pipeline.worker.turn import LeasedUnit, WorkerTally, now_us


@dataclass(slots=True, kw_only=True)
class ChainOutput:
    """The output of the last step, and the reason if a step stopped."""

    out: HopRows | None
    """None if not all rows came through: the step failed, or the worker is to end."""
    letters: dict[str, list[Letter]] = field(default_factory=dict)
    failed: tuple[str, int, Failure] | None = None
    """Step, offset of the input row, and why."""
    stuck: str | None = None
    """The step whose calls never returned."""


class StepChain:
    """Filters, columns and functions of a hop. For one thread."""

    def __init__(
        self,
        hop: Hop,
        config: Config,
        *,
        time_zone: str,
        workspace: str,
        scratch: str,
        job_id: str,
    ) -> None:
        """Makes the callables; their exceptions pass through."""
        self.parts: list[FusedQuery | FunctionCaller] = []
        schema, waiting = hop.schema, list[FilterStep | Select]()
        for step in hop.steps:
            match step:
                case FilterStep() | Select():
                    waiting.append(step)
                case Map():
                    self._add_query(waiting, schema, config, time_zone, scratch)
                    waiting = []
                    if hop.expensive is step:
                        break
                    self.parts.append(
                        FunctionCaller.of(hop, step, config, workspace=workspace, job_id=job_id)
                    )
                    schema = step.schema
                case KeyBy() | StateStep() | UnionStep():
                    pass  # Rows go on as they are; where to is decided when they are published.
        self._add_query(waiting, schema, config, time_zone, scratch)
        last = self.parts[-1] if self.parts else None
        self.front: FusedQuery | None = None
        if self.parts and isinstance(self.parts[0], FusedQuery):
            self.front, self.parts = self.parts[0], self.parts[1:]
        self._is_single = hop.expensive is not None
        self.schema: pa.Schema = last.schema if isinstance(last, FusedQuery) else schema
        """The schema of the output rows, or of the rows for the expensive step behind them."""

    def _add_query(
        self,
        steps: Sequence[FilterStep | Select],
        schema: pa.Schema,
        config: Config,
        time_zone: str,
        scratch: str,
    ) -> None:
        if steps:
            query = FusedQuery(steps, schema, config=config, time_zone=time_zone, scratch=scratch)
            self.parts.append(query)

    def first(self, rows: HopRows) -> HopRows:
        """Rows through the filters and columns in front of all functions.

        A query costs as much for few rows as for thousands, so these get whole pieces.
        """
        return rows if self.front is None else self.front.run(rows)

    @property
    def callers(self) -> list[FunctionCaller]:
        """Its functions, in order."""
        return [part for part in self.parts if isinstance(part, FunctionCaller)]

    def batch_rows(self, config: Config) -> int:
        """The number of rows of a batch for the functions; large if there are no functions."""
        limits = [caller.options.batch_rows or config.job_batch_rows for caller in self.callers]
        return min(limits, default=config.journal_read_rows_max)

    def batch_bytes(self, config: Config) -> int:
        """The number of bytes of a batch for the functions; large if there are no functions."""
        limits = [caller.options.batch_bytes or config.job_batch_bytes for caller in self.callers]
        return min(limits, default=config.job_read_ahead_bytes)

    def cut(self, piece: RowsAhead, unit: LeasedUnit) -> Iterator[tuple[HopRows, int]]:
        """A piece in batches for the functions, each with the offset behind it."""
        config, rows = unit.config, piece.rows
        row_bytes = max(1, int(rows.batch.nbytes) // max(1, len(rows)))
        step = max(1, min(self.batch_rows(config), self.batch_bytes(config) // row_bytes))
        for first, last in unit.deaths.parts(rows):
            is_suspect = unit.deaths.is_suspect(int(rows.offsets[first]))
            # Rows that were called for together are again.
            size = last - first if is_suspect else step
            for begin in range(first, last, size):
                end = min(begin + size, last)
                is_last = end == len(rows)
                yield rows.slice(begin, end), piece.next if is_last else int(rows.offsets[end])
        if not len(rows):
            yield rows, piece.next

    def open_file(self, files: CallFiles) -> CallFile:
        """A file that marks the calls of the functions, for the next process."""
        if not self.callers:
            return CallFile(0)
        return files.open(slots=max(caller.options.concurrency for caller in self.callers))

    def recover(self, unit: LeasedUnit, files: CallFiles, publisher: Publisher) -> None:
        """Record the calls that ended the last worker of this run on the unit, if any did."""
        left = files.take_cheap() if self.callers else None
        if left is None:
            return
        callers = {caller.step.name: caller for caller in self.callers}
        caller = callers.get(left.step)
        offsets = left.offsets
        if caller is not None and offsets is not None and left.header["run"] == unit.run:
            # Of several calls, one did it. All are made once more by themselves, which will tell.
            most = caller.options.retries if len(left.marks) > 1 else sys.maxsize
            deaths = [
                death_of(caller.step, offsets, mark, min(mark.attempt, most)) for mark in left.marks
            ]
            for death in deaths:
                unit.deaths.add(death)
            events = tuple(unit.notes.died(now_us(), death) for death in deaths)
            publisher.publish(UnitPublish(next=publisher.at, events=events), "settle")
        files.forget_cheap()

    def run(self, rows: HopRows, unit: LeasedUnit, call_file: CallFile) -> ChainOutput:
        """Take rows through all steps behind the first filters and columns."""
        through = ChainOutput(out=None)
        for part in self.parts:
            if not len(rows):
                break
            if isinstance(part, FusedQuery):
                try:
                    rows = part.run(rows)
                except QueryFailed as failed:
                    through.failed = (failed.step, failed.offset, failed.failure)
                    return through
                continue
            step, retries = part.step, part.options.retries
            call_file.next_batch(step.name, rows.offsets)
            past = KnownCalls(unit.deaths.past(step.name, rows, step.calling.rows, retries))
            called = call_for(
                part, rows, unit.journal.id, unit.sleep, call_file=call_file, past=past
            )
            self._note(through, part, called, rows, unit)
            if called.done < len(rows):
                return through
            rows = called.out
            if self._is_single and (repeated := _repeated(rows)) is not None:
                through.failed = (step.name, repeated, _several_rows(part))
                return through
        through.out = rows
        return through

    def _note(
        self,
        through: ChainOutput,
        part: FunctionCaller,
        called: BatchOutcome,
        rows: HopRows,
        unit: LeasedUnit,
    ) -> None:
        step, tally = part.step.name, unit.tally
        _count(tally, step, called)
        if called.left_out and part.options.on_error == "dead_letter":
            through.letters.setdefault(step, []).extend(
                unit.notes.letter(now_us(), part.step, rows, f) for f in called.left_out
            )
            tally.add(tally.dead_letters, step, len(called.left_out))
        if called.failed is not None:
            offset = int(rows.offsets[called.done])
            through.failed = (step, offset, called.failed)
        if called.stuck:
            through.stuck = step

    def close(self) -> None:
        """Close the steps, except callables that stay for later turns."""
        for part in [*self.parts, *([] if self.front is None else [self.front])]:
            part.close()


def _repeated(rows: HopRows) -> int | None:
    """The first offset that several rows have; None if each row has its own."""
    places = np.flatnonzero(np.diff(rows.offsets) == 0)
    return int(rows.offsets[places[0]]) if len(places) else None


def _several_rows(caller: FunctionCaller) -> Failure:
    error = (
        f"{caller.step.calling.name} returned several rows for one row\n"
        "  expected: at most one, as its return annotation says, since a step with paid calls "
        "reads them\n"
        "  to fix: return one row or None; or keep the rows of the step with durable=True"
    )
    return Failure(place=0, error=error, traceback="")


def _count(tally: WorkerTally, step: str, called: BatchOutcome) -> None:
    tally.add(tally.calls, step, called.calls)
    tally.add(tally.errors, step, called.errors)
    tally.add(tally.skipped, step, len(called.left_out))
    tally.add_in_function(step, called.seconds)
