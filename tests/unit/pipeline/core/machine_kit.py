"""Traces of the machines: every event and the actions that follow, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import NUMBERS, map_step

from millrace.pipeline.core.call_budget import BudgetShare
from millrace.pipeline.core.call_outcomes import (
    BatchOutcome,
    CallMark,
    CallResult,
    Failure,
    LeftCalls,
)
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.call_records import CallRecord, CallRecordKind, Totals
from millrace.pipeline.core.expensive_actions import (
    CountRows,
    EndTurn,
    ExpensiveAction,
    MakeCalls,
    OpenCallFile,
    PublishChange,
    PutBackRows,
    ReadBatch,
    StoreLarge,
    WaitForRate,
)
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.paid_step import PaidStep
from millrace.pipeline.core.unit_publish import UnitNotes, UnitPublish
from millrace.pipeline.core.worker_deaths import Deaths

RUN, EPOCH, NOW = 7, 3, 1_000_000


def rows(*offsets: int) -> HopRows:
    """Rows whose value is ten times their offset."""
    batch = pa.RecordBatch.from_pylist([{"x": 10 * offset} for offset in offsets], NUMBERS)
    return HopRows(batch, np.array(offsets, np.int64))


def batch(*offsets: int, next_: int | None = None) -> CallRange:
    end = offsets[-1] + 1 if next_ is None else next_
    return CallRange(rows(*offsets), end)


def made(*offsets: int) -> bytes:
    """The result of a call, as a call file keeps it."""
    return bytes(rows(*offsets).batch.serialize())


def outcome(*offsets: int, calls: int | None = None, **more: Any) -> BatchOutcome:  # noqa: ANN401
    """Calls that returned the rows that they were given."""
    done = more.pop("done", len(offsets))
    count = len(offsets) if calls is None else calls
    return BatchOutcome(done=done, out=rows(*offsets), calls=count, **more)


def failure(index: int, error: str = "ValueError: no") -> Failure:
    return Failure(place=index, error=error, traceback="")


def unsettled(
    first: int, next_: int, calls: int, kind: CallRecordKind = CallRecordKind.INTENT
) -> CallRecord:
    return CallRecord(
        at_us=NOW,
        epoch=EPOCH - 1,
        kind=kind,
        first=first,
        next=next_,
        calls=calls,
        totals=Totals(calls=calls),
    )


def left(
    *offsets: int,
    marks: Sequence[tuple[int, int, int]] = (),
    run: int = RUN,
    settled: dict[tuple[int, int], CallResult] | None = None,
) -> LeftCalls:
    return LeftCalls(
        header={"run": run},
        step="pay",
        offsets=np.array(offsets, np.int64),
        marks=[CallMark(*mark) for mark in marks],
        settled=settled or {},
    )


def share(calls: int, total: int) -> BudgetShare:
    return BudgetShare(calls=calls, total=total, at_us=NOW, first_us=NOW, slot_us=NOW)


class Trace:
    """A machine, and all that happened to it."""

    def __init__(
        self,
        record: CallRecord | None = None,
        *,
        at: int = 0,
        rows_kind: str = "row",
        last_share: BudgetShare | None = None,
        deaths: Deaths | None = None,
        **options: Any,  # noqa: ANN401 - of any option
    ) -> None:
        step = map_step("pay", print, rows=rows_kind, expensive=True, **options)  # type: ignore[arg-type]
        self.share = last_share
        self.actions: list[ExpensiveAction] = []
        self.machine = ExpensiveMachine(
            PaidStep(
                step=step,
                schema=NUMBERS,
                notes=UnitNotes(job_id="id", job="j", run=RUN, journal="src/0", journal_id=5),
                epoch=EPOCH,
                has_budget=step.options.max_calls is not None or step.options.rate is not None,
            ),
            at=at,
            totals=Totals() if record is None else record.totals,
            unsettled=record,
            deaths=deaths or Deaths(),
            last_share=last_share,
        )
        self.lines: list[str] = []

    def after(self, event: Callable[..., list[ExpensiveAction]], *args: Any) -> Trace:  # noqa: ANN401
        """Give the machine an event, and note what it wants."""
        self.actions = event(*args)
        self.lines.append(f"> {event.__name__.removeprefix('on_')}")
        self.lines += [shown(action) for action in self.actions]
        return self

    # Events by name, in the order of a turn.
    def start(self) -> Trace:
        return self.after(self.machine.on_start)

    def left_calls(self, of: CallRange, calls: LeftCalls | None) -> Trace:
        return self.after(self.machine.on_left_calls, of, calls, NOW)

    def stored(self) -> Trace:
        (action,) = self.actions
        assert isinstance(action, StoreLarge)
        return self.after(self.machine.on_large_stored, action.rows, NOW)

    def read(self, *offsets: int, next_: int | None = None) -> Trace:
        given = batch(*offsets, next_=next_) if offsets else CallRange(rows(), next_ or 0)
        return self.after(self.machine.on_batch, given, None, NOW)

    def published(self) -> Trace:
        change = self.publishing()
        if change.budget:
            self.share = change.budget[-1]
        return self.after(self.machine.on_published, self.share)

    def budget_moved(self, last: BudgetShare) -> Trace:
        self.share = last
        return self.after(self.machine.on_budget_moved, last, NOW)

    def called(self, result: BatchOutcome) -> Trace:
        return self.after(self.machine.on_called, result, NOW)

    def retry(self) -> Trace:
        return self.after(self.machine.on_retry, NOW)

    def over(self) -> Trace:
        return self.after(self.machine.on_turn_over, NOW)

    def publishing(self) -> UnitPublish:
        """The change that is to be published now."""
        action = self.actions[-1]
        assert isinstance(action, PublishChange), action
        return action.change


def shown(action: ExpensiveAction) -> str:
    match action:
        case ReadBatch(until_stopped):
            return "read, whatever the time" if until_stopped else "read"
        case OpenCallFile(first, offsets, known):
            behind = f", known {sorted(known)}" if known else ""
            return f"open file {first} for {offsets.tolist()}{behind}"
        case PublishChange(change, point):
            return f"{point}: {shown_change(change)}"
        case MakeCalls(given, past, in_doubt):
            words = [f"call for {given.offsets.tolist()}"]
            words += [f"known {sorted(past.settled)}"] if past.settled else []
            words += [f"attempts {dict(past.attempts)}"] if past.attempts else []
            words += ["in doubt"] if in_doubt else []
            return ", ".join(words)
        case StoreLarge(several):
            return f"store large values of {[part.offsets.tolist() for part in several]}"
        case PutBackRows(given):
            return f"put back {given.rows.offsets.tolist()}"
        case WaitForRate(wait_us):
            return f"wait {wait_us}"
        case CountRows(skipped, dead_letters):
            return f"count {skipped} skipped, {dead_letters} dead letters"
        case EndTurn(end):
            return f"end: {end}"
        case _:
            return type(action).__name__


def shown_change(change: UnitPublish) -> str:
    words = [f"to {change.next}"]
    values = [value // 10 for part in change.outputs for value in part["x"].to_pylist()]
    words += [f"rows {values}"] if values else []
    words += [f"{r.kind} {r.first}-{r.next} x{r.calls}" for r in change.records]
    words += [f"budget {part.calls:+}={part.total}" for part in change.budget]
    words += [f"dead {[letter.offset for letter in some]}" for some in change.letters.values()]
    words += [f"event {event.happened}" for event in change.events]
    return ", ".join(words)
