"""A turn on a unit of an expensive step: what a dead worker left, and settling results. Pure.

The state of the machine of an expensive step, and the parts of it that make no calls.
Invariant: results are published together with the record that says what is in doubt behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millrace.pipeline.core import call_budget
from millrace.pipeline.core.call_budget import BudgetShare
from millrace.pipeline.core.call_outcomes import LeftCalls
from millrace.pipeline.core.call_ranges import (
    CallRange,
    FrontEnd,
    FrontFailed,
    FrontStopped,
    FrontStuck,
)
from millrace.pipeline.core.call_records import CallRecord, Totals
from millrace.pipeline.core.call_recovery import RecoveredCalls, recover_calls
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.expensive_actions import (
    BatchInWork,
    CountRows,
    EndTurn,
    ExpensiveAction,
    ForgetCallFiles,
    PublishChange,
    PutBackRows,
    ReadBatch,
    RemoveCallFile,
    Sending,
    SendingResults,
    StoreLarge,
)
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.paid_step import PaidStep, PastCalls
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.core.worker_deaths import Deaths

Actions = list[ExpensiveAction]


class PaidTurn:
    """The state of a turn. The calls are made by `ExpensiveMachine`."""

    def __init__(
        self,
        paid: PaidStep,
        *,
        at: int,
        totals: Totals,
        unsettled: CallRecord | None,
        deaths: Deaths,
        last_share: BudgetShare | None = None,
    ) -> None:
        """Take over a unit.

        Args:
            paid: the step.
            at: the unit's committed offset.
            totals: of the unit, as of the last record.
            unsettled: the calls that a dead worker was about to make, if there are such.
            deaths: calls that ended their process; new ones are added.
            last_share: the last share that was taken from the budget, as read.
        """
        self._paid, self._options = paid, paid.step.options
        self._at, self._totals, self._recorded = at, totals, totals
        self._unsettled = unsettled
        self._last_share = last_share
        self._share: BudgetShare | None = None
        """The share of the batch in work."""
        self._past = PastCalls(paid, deaths)
        self._waiting = UnitPublish(next=at)
        """Results that wait for the next intent."""
        self._waiting_calls = 0
        """The number of calls that these results are of, as their intents planned them."""
        self._sending: Sending | None = None
        self._calling: BatchInWork | None = None
        self._ahead: BatchInWork | None = None
        """The batch behind it, if its intent is recorded already."""
        self._read_ahead: tuple[CallRange, FrontEnd | None] | None = None
        """What was read behind it, if there is no intent for that."""
        self._has_read_error = False
        self._recovered: RecoveredCalls | None = None
        self._left_range: CallRange | None = None
        self._retries = 0
        self._has_file = self._is_spent = False
        self._end = TurnEnd.OVER

    # What a dead worker left.
    def on_left_calls(self, batch: CallRange, left: LeftCalls | None, now_us: int) -> Actions:
        """The rows of the dead worker's record, and its call file if this host has it."""
        assert self._unsettled is not None
        calls, self._left_range = self._unsettled.calls, batch
        self._recovered = recover_calls(self._paid, self._past.deaths, batch, calls, left, now_us)
        if self._recovered.outputs:
            return [StoreLarge(tuple(self._recovered.outputs))]
        return self.on_large_stored((), now_us)

    def on_large_stored(self, rows: tuple[HopRows, ...], now_us: int) -> Actions:
        """The recovered rows, with references instead of large values."""
        recovered, range_ = self._recovered, self._left_range
        assert recovered is not None and range_ is not None  # noqa: PT018 - set together
        self._totals = self._totals.plus(**recovered.counts)
        change = UnitPublish(
            next=recovered.next,
            outputs=tuple(part.batch for part in rows),
            letters=self._letters(range_, recovered.next, recovered.letters),
            events=tuple(recovered.events),
            budget=self._given_back(-recovered.counts.get("calls", 0), now_us),
        )
        skipped, dead = (recovered.counts.get(name, 0) for name in ("skipped", "dead_letters"))
        if recovered.on_hold is not None:
            return [*counted_rows(skipped, dead), *self._hold(change, recovered.on_hold, now_us)]
        record = self._paid.settled(now_us, change.next, change.next, self._totals)
        change = replace(change, records=(record,))
        self._past.results, self._past.doubted = recovered.known, recovered.doubted
        self._waiting = UnitPublish(next=change.next)
        rest = recovered.rest
        put_back = [PutBackRows(range_.behind(rest))] if rest is not None else []
        then = [ForgetCallFiles(), *put_back, *self._read()]
        return [*counted_rows(skipped, dead), *self._settle(change, then)]

    def on_left_unread(self, end: FrontEnd, now_us: int) -> Actions:
        """The rows of the dead worker's record cannot be read now: its calls stay as they are."""
        self._end_front(end, now_us)
        return self._finish(now_us)

    def _hold(self, change: UnitPublish, rows: HopRows, now_us: int) -> Actions:
        """Publish the known results, and leave calls in doubt to the user."""
        record = self._unsettled
        assert record is not None
        calls, first, next_ = self._past.calls_of(rows), change.next, int(rows.offsets[-1]) + 1
        if self._totals != self._recorded or (first, next_) != (record.first, record.next):
            narrower = self._paid.intent(now_us, first, next_, calls=calls, totals=self._totals)
            change = replace(change, records=(narrower,))
        event = self._paid.event(now_us, JobEventKind.HELD, first=first, next=next_, calls=calls)
        change = replace(change, events=(*change.events, event))
        return self._settle(change, [ForgetCallFiles(), EndTurn(TurnEnd.HELD)], "hold")

    def _read(self) -> Actions:
        return [ReadBatch(until_stopped=bool(self._past.results))]

    # The end.
    def _finish(self, now_us: int) -> Actions:
        change = self._waiting
        if self._past.results:
            # The turn ended before the rows in front of these were settled: they are lost with it.
            self._totals = self._totals.plus(in_doubt=len(self._past.results))
            records = tuple(replace(record, totals=self._totals) for record in change.records)
            change = replace(change, records=records)
        return self._settle(self._with_totals(change, now_us), [EndTurn(self._end)])

    def _with_totals(self, change: UnitPublish, now_us: int) -> UnitPublish:
        """Add a record for totals that no intent will carry."""
        if self._totals == self._recorded or change.records:
            return change
        record = self._paid.settled(now_us, change.next, change.next, self._totals)
        return replace(change, records=(record,))

    def _settle(self, change: UnitPublish, then: Actions, point: str = "settle") -> Actions:
        if change.is_empty(self._at):
            return self._settled(change, tuple(then))
        self._sending = SendingResults(change, point, tuple(then))
        return [PublishChange(change, point)]

    def _settled(self, change: UnitPublish, then: tuple[ExpensiveAction, ...]) -> Actions:
        self._published_to(change.next)
        if change.records:
            self._recorded = self._totals
        had_file, self._has_file = self._has_file, False
        return [RemoveCallFile(), *then] if had_file else list(then)

    def _published_to(self, offset: int) -> None:
        """All results below an offset are published: none wait any more."""
        self._at, self._waiting, self._waiting_calls = offset, UnitPublish(next=offset), 0

    def _given_back(self, calls: int, now_us: int) -> tuple[BudgetShare, ...]:
        if not calls or not self._paid.has_budget or self._last_share is None:
            return ()
        return (call_budget.give_back(self._last_share, calls, now_us),)

    def _letters(
        self, range_: CallRange, next_: int, own: Sequence[Letter]
    ) -> dict[str, tuple[Letter, ...]]:
        """Dead letters by step: those of the steps in front below an offset, and its own."""
        front = range_.letters_below(next_)
        return front | ({self._paid.name: tuple(own)} if own else {})

    def _end_front(self, end: FrontEnd | None, now_us: int) -> None:
        """End the turn as the steps in front ended."""
        match end:
            case FrontFailed(step, offset, failure):
                event = self._paid.notes.failed(now_us, step, offset, failure)
                self._add_event(event, TurnEnd.FAILED)
            case FrontStuck(step):
                event = self._paid.notes.event(now_us, JobEventKind.STUCK, step)
                self._add_event(event, TurnEnd.STUCK)
            case _:
                assert end is None or isinstance(end, FrontStopped)

    def _add_event(self, event: JobEvent, end: TurnEnd) -> None:
        """Add the event that ends the turn to the waiting results."""
        self._waiting = replace(self._waiting, events=(*self._waiting.events, event))
        self._end = end


def counted_rows(skipped: int, dead_letters: int) -> Actions:
    """The action that counts rows which were left out."""
    return [CountRows(skipped, dead_letters)] if skipped else []
