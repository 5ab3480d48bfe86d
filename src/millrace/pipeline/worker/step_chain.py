"""The steps of a cheap hop, one after the other, over a piece of a unit's rows.

They record nothing, so after a crash they simply run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.config import Config
from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import BatchOutcome, Failure, KnownCalls
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import FilterStep, KeyBy, Map, Select, UnionStep
from millrace.pipeline.worker.fused_query import FusedQuery
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
                case KeyBy() | UnionStep():
                    pass  # Rows go on as they are; where to is decided when they are published.
        self._add_query(waiting, schema, config, time_zone, scratch)
        last = self.parts[-1] if self.parts else None
        self.front: FusedQuery | None = None
        if self.parts and isinstance(self.parts[0], FusedQuery):
            self.front, self.parts = self.parts[0], self.parts[1:]
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
                part, rows, unit.journal.id, _Waiting(unit), call_file=call_file, past=past
            )
            self._note(through, part, called, rows, unit)
            if called.done < len(rows):
                return through
            rows = called.out
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


def _count(tally: WorkerTally, step: str, called: BatchOutcome) -> None:
    tally.add(tally.calls, step, called.calls)
    tally.add(tally.errors, step, called.errors)
    tally.add(tally.skipped, step, len(called.left_out))
    tally.add(tally.in_function, step, called.seconds)


@dataclass(slots=True)
class _Waiting:
    """Hooks for calls of a cheap step: they only wait."""

    unit: LeasedUnit

    def delay_s(self, number: int) -> float:
        """Nothing."""
        del number
        return 0.0

    def before_retry(self, number: int) -> float:
        """Nothing."""
        del number
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Wait, unless the worker is to end."""
        if seconds > 0:
            self.unit.sleep(seconds)
