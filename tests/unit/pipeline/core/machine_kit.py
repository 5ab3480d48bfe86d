"""Traces of the machine of paid calls: every event and the actions that follow, a line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import NUMBERS, map_step

from millrace.pipeline.core.call_outcomes import (
    CallMark,
    CallOutcome,
    CallResult,
    Failure,
    LeftCalls,
    LeftOutcome,
)
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.core.expensive_actions import (
    CountRows,
    EndTurn,
    ExpensiveAction,
    KeepResults,
    PublishChange,
    StartCalls,
    Wait,
)
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.paid_step import PaidStep, WindowLimits
from millrace.pipeline.core.unit_publish import UnitNotes, UnitPublish
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.paid.call_budget import BudgetShare, Wallet
from millrace.pipeline.paid.call_records import CallRecord, CallRecordKind, Held, Totals
from millrace.pipeline.paid.spend import NO_SPEND, CallSpend, Spend

RUN, EPOCH, NOW = 7, 3, 1_000_000
LINGER_US = 50_000


def rows(*offsets: int) -> HopRows:
    """Rows whose value is ten times their offset."""
    batch = pa.RecordBatch.from_pylist([{"x": 10 * offset} for offset in offsets], NUMBERS)
    return HopRows(batch, np.array(offsets, np.int64))


def made(*offsets: int) -> bytes:
    """The result of a call, as a call file keeps it."""
    return bytes(rows(*offsets).batch.serialize())


def failure(error: str = "ValueError: no", attempts: int = 1) -> Failure:
    return Failure(place=0, error=error, traceback="", attempts=attempts, kind="ValueError")


def unsettled(first: int, next_: int, calls: int, **more: Any) -> CallRecord:  # noqa: ANN401
    return CallRecord(
        at_us=NOW,
        epoch=EPOCH - 1,
        kind=CallRecordKind.INTENT,
        first=first,
        next=next_,
        calls=calls,
        totals=Totals(calls=calls),
        **more,
    )


def left(
    *marks: tuple[int, int, int],
    run: int = RUN,
    results: dict[int, CallResult | None] | None = None,
    usd: int = 0,
) -> LeftCalls:
    """The call files of a dead worker: its marks, and results by offset."""
    outcomes = [
        LeftOutcome(
            number=number,
            begin=offset,
            end=offset + 1,
            attempt=1,
            result=result,
            seconds=0.1,
            noted=CallSpend(spend=Spend(nano_usd=usd)),
            at_us=NOW,
        )
        for number, (offset, result) in enumerate((results or {}).items())
    ]
    return LeftCalls(
        header={"run": run},
        step="pay",
        marks=[CallMark(*mark) for mark in marks],
        outcomes=outcomes,
    )


def share(calls: int, total: int) -> BudgetShare:
    return BudgetShare(at_us=NOW, change=Held(calls=calls), total=Held(calls=total))


class Trace:
    """A machine, and all that happened to it."""

    def __init__(
        self,
        record: CallRecord | None = None,
        *,
        at: int = 0,
        rows_kind: str = "row",
        last_share: BudgetShare | None = None,
        limits: WindowLimits | None = None,
        **options: Any,  # noqa: ANN401 - of any option
    ) -> None:
        step = map_step("pay", print, rows=rows_kind, expensive=True, **options)  # type: ignore[arg-type]
        self.share, self.now = last_share, NOW
        self.actions: list[ExpensiveAction] = []
        slots = step.options.concurrency
        budget = step.options.budget
        self.machine = ExpensiveMachine(
            PaidStep(
                step=step,
                schema=NUMBERS,
                notes=UnitNotes(job_id="id", job="j", run=RUN, journal="src/0", journal_id=5),
                epoch=EPOCH,
                limits=limits or WindowLimits(concurrency=slots, ahead_max=1),
                batch_rows=3,
            ),
            at=at,
            totals=Totals() if record is None else record.totals,
            last=record,
            deaths=Deaths(),
            held=Held(),
            wallet=None if budget is None else Wallet(budget, Held(), last_share),
        )
        self.lines: list[str] = []

    def after(self, event: Callable[..., list[ExpensiveAction]], *args: Any) -> Trace:  # noqa: ANN401
        """Give the machine an event, and note what it wants; then what it does when idle."""
        self.actions = event(*args)
        self.lines.append(f"> {event.__name__.removeprefix('on_')}")
        self.lines += [shown(action) for action in self.actions]
        return self

    # Events by name, in the order of a turn.
    def start(self) -> Trace:
        return self.after(self.machine.on_start)

    def left_calls(self, offsets: Sequence[int], calls: LeftCalls | None) -> Trace:
        given = CallRange(rows(*offsets), offsets[-1] + 1)
        return self.after(self.machine.on_left_calls, given, calls, self.now)

    def read(self, *offsets: int, next_: int | None = None) -> Trace:
        end = (offsets[-1] + 1 if offsets else 0) if next_ is None else next_
        return self.after(self.machine.on_rows, CallRange(rows(*offsets), end), None, self.now)

    def idle(self, later_us: int = 0) -> Trace:
        self.now += later_us
        return self.after(self.machine.on_idle, self.now)

    def published(self) -> Trace:
        change = self.publishing()
        if change.budget:
            self.share = change.budget[-1]
        return self.after(self.machine.on_published, self.share, self.now)

    def budget_moved(self, last: BudgetShare) -> Trace:
        self.share = last
        return self.after(self.machine.on_budget_moved, last, self.now)

    def called(self, offset: int, **how: Any) -> Trace:  # noqa: ANN401 - fields of an outcome
        outcome = CallOutcome(
            first=offset,
            attempt=how.pop("attempt", 1),
            at_us=self.now,
            seconds=how.pop("seconds", 1.0),
            made=None if "failure" in how else how.pop("made", rows(offset).batch),
            noted=how.pop("noted", NO_SPEND),
            **how,
        )
        return self.after(self.machine.on_called, outcome, self.now)

    def withdrawn(self, *offsets: int) -> Trace:
        return self.after(self.machine.on_withdrawn, list(offsets))

    def over(self) -> Trace:
        return self.after(self.machine.on_turn_over)

    def publishing(self) -> UnitPublish:
        """The change that is to be published now."""
        action = self.actions[-1]
        assert isinstance(action, PublishChange), action
        return action.change


def shown(action: ExpensiveAction) -> str:
    match action:
        case PublishChange(change, point):
            return f"{point}: {shown_change(change)}"
        case StartCalls(calls):
            return f"start {', '.join(map(shown_call, calls))}"
        case KeepResults(calls):
            return f"keep {[call.first for call in calls]}"
        case Wait(until_us):
            return "wait" if until_us is None else f"wait until {until_us - NOW}"
        case CountRows(skipped, dead_letters):
            return f"count {skipped} skipped, {dead_letters} dead letters"
        case EndTurn(end, keeps_file):
            return f"end: {end}" + (", files stay" if keeps_file else "")
        case _:
            return type(action).__name__


def shown_call(call: SlidingCall) -> str:
    text = str(call.first) if len(call.rows) == 1 else f"{call.first}-{call.end}"
    text += f" again ({call.attempt})" if call.attempt > 1 else ""
    return text + (" in doubt" if call.in_doubt else "")


def shown_change(change: UnitPublish) -> str:
    words = [f"to {change.next}"]
    values = [value // 10 for part in change.outputs for value in part["x"].to_pylist()]
    words += [f"rows {values}"] if values else []
    words += [f"{r.kind} {r.first}-{r.next} x{r.calls}" for r in change.records]
    words += [f"behind {list(r.published)}" for r in change.records if r.published]
    words += [f"budget {part.change.calls:+}={part.total.calls}" for part in change.budget]
    words += [f"dead {[letter.offset for letter in some]}" for some in change.letters.values()]
    words += [f"event {event.happened}" for event in change.events]
    return ", ".join(words)
