"""The content of one transaction of a worker on a unit, with its events and dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.dead_letters import Letter, error_text
from millrace.pipeline.core.hop_rows import HopRows, asker_of, row_keys
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.worker_deaths import Death
from millrace.pipeline.paid.call_budget import BudgetShare
from millrace.pipeline.paid.call_records import CallRecord
from millrace.pipeline.paid.charges import CallCharge
from millrace.pipeline.paid.spend import CallSpend
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_size import StateSize


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPublish:
    """Everything that one transaction publishes."""

    next: int
    """The unit's committed offset after the transaction."""
    outputs: tuple[pa.RecordBatch, ...] = ()
    records: tuple[CallRecord, ...] = ()
    budget: tuple[BudgetShare, ...] = ()
    """Rows for the budget journal, in order; the last row holds the running total."""
    letters: Mapping[str, tuple[Letter, ...]] = field(default_factory=dict)
    """Dead letters by step."""
    events: tuple[JobEvent, ...] = ()
    state: tuple[pa.RecordBatch, ...] = ()
    """Changes of the state of the unit's keys, in order."""
    skipped: SkippedRows | None = None
    """The totals of rows that were left out, if they changed."""
    size: StateSize | None = None
    """How large the state is now, if it has other rows than before."""
    charges: tuple[CallCharge, ...] = ()
    """A row for each call that ended."""

    def is_empty(self, at: int) -> bool:
        """Whether it changes nothing for a unit whose committed offset is `at`."""
        rows = (self.outputs, self.state, self.records, self.budget, self.letters, self.events)
        return self.next == at and not any(rows) and not self.charges

    def then(self, later: UnitPublish) -> UnitPublish:
        """Both as one; `later` is of rows behind these."""
        return replace(
            self,
            next=later.next,
            outputs=(*self.outputs, *later.outputs),
            records=(*self.records, *later.records),
            budget=(*self.budget, *later.budget),
            events=(*self.events, *later.events),
            state=(*self.state, *later.state),
            skipped=later.skipped or self.skipped,
            size=later.size or self.size,
            charges=(*self.charges, *later.charges),
        ).with_letters(later.letters)

    def with_letters(self, more: Mapping[str, tuple[Letter, ...]]) -> UnitPublish:
        """The same with more dead letters, behind those of the same step."""
        added = {step: (*self.letters.get(step, ()), *some) for step, some in more.items()}
        return replace(self, letters={**self.letters, **added})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitNotes:
    """Makes the events and dead letters of one unit in one run."""

    job_id: str
    job: str
    run: int
    journal: str
    journal_id: int

    def event(
        self,
        at_us: int,
        happened: JobEventKind,
        step: str,
        **detail: Any,  # noqa: ANN401 - JSON
    ) -> JobEvent:
        """An event of the run about this unit."""
        return JobEvent(
            at_us=at_us,
            run=self.run,
            happened=happened,
            step=step,
            detail={"journal": self.journal, **detail},
        )

    def died(self, at_us: int, death: Death) -> JobEvent:
        """The event of a call that ended its process."""
        return self.event(at_us, JobEventKind.DIED, **death.detail())

    def failed(self, at_us: int, step: str, offset: int, failure: Failure) -> JobEvent:
        """The event of a step that gives up at the row of this offset."""
        return self.event(
            at_us,
            JobEventKind.FAILED,
            step,
            offset=offset,
            error=failure.error,
            traceback=failure.traceback,
            attempts=failure.attempts,
        )

    def charge(
        self,
        *,
        at_us: int,
        offset: int,
        attempt: int,
        noted: CallSpend,
        seconds: float,
        failure: Failure | None,
        is_refused: bool = False,
    ) -> CallCharge:
        """The charge of a call that ended."""
        kind, text = ("", "") if failure is None else (failure.kind or "Error", failure.error)
        return CallCharge(
            at_us=at_us,
            run=self.run,
            journal=self.journal,
            offset=offset,
            attempt=attempt,
            noted=noted,
            latency_us=int(seconds * 1_000_000),
            error="ProviderBusy" if is_refused else kind,
            message="" if is_refused else text,
        )

    def letter(
        self, at_us: int, step: Map | FunctionSink, rows: HopRows, failure: Failure
    ) -> Letter:
        """The dead letter of the row that a failure names."""
        asker = asker_of(self.job_id, self.job, step.name, step.calling.identity)
        index = failure.place
        (key,) = row_keys(asker, self.journal_id, rows, index, index + 1)
        return Letter(
            at_us=at_us,
            run=self.run,
            journal=self.journal,
            offset=int(rows.offsets[index]),
            key=key,
            error=error_text(failure.kind, failure.error),
            traceback=failure.traceback,
            row=rows.batch.slice(index, 1),
        )
