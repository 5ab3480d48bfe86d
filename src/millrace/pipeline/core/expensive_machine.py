"""Decides about the calls of an expensive step on one unit, so that none is paid for twice. Pure.

Batch by batch: intent, calls, results with the next intent. `on_*` methods return actions.
Invariant: no call is made before its intent is durable, and an intent is published only together
with the results of the batch before it. So a dead worker lacks the results of at most one batch.
Its call file says which calls of that batch were under way: only these are in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millrace.pipeline.core import call_budget
from millrace.pipeline.core.call_budget import BudgetShare
from millrace.pipeline.core.call_outcomes import BatchOutcome, LeftCalls
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
    DiscardNewCallFile,
    EndTurn,
    ExpensiveAction,
    ForgetCallFiles,
    MakeCalls,
    OpenCallFile,
    PublishChange,
    PutBackRows,
    ReadBatch,
    ReadLeftCalls,
    RemoveCallFile,
    SendingIntent,
    SendingResults,
    SendingRetry,
    StopCalls,
    StoreLarge,
    SwitchCallFile,
    WaitForRate,
)
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.paid_step import PaidStep, PastCalls
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.core.worker_deaths import Deaths

Actions = list[ExpensiveAction]


class ExpensiveMachine:
    """One turn of a worker on a unit of an expensive step."""

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
        self._sending: SendingIntent | SendingRetry | SendingResults | None = None
        self._calling: BatchInWork | None = None
        self._recovered: RecoveredCalls | None = None
        self._left_range: CallRange | None = None
        self._retries = 0
        self._has_file = self._is_spent = False
        self._end = TurnEnd.OVER

    def on_start(self) -> Actions:
        """Begin the turn."""
        if self._unsettled is not None:
            return [ReadLeftCalls(self._unsettled)]
        return [ForgetCallFiles(), *self._read()]

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
            return [*_counted(skipped, dead), *self._hold(change, recovered.on_hold, now_us)]
        record = self._paid.settled(now_us, change.next, change.next, self._totals)
        change = replace(change, records=(record,))
        self._past.results, self._past.doubted = recovered.known, recovered.doubted
        self._waiting = UnitPublish(next=change.next)
        rest = recovered.rest
        put_back = [PutBackRows(range_.behind(rest))] if rest is not None else []
        then = [ForgetCallFiles(), *put_back, *self._read()]
        return [*_counted(skipped, dead), *self._settle(change, then)]

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

    # Before the calls.
    def _read(self) -> Actions:
        return [ReadBatch(until_stopped=bool(self._past.results))]

    def on_front_due(self, now_us: int) -> Actions:
        """Functions in front of the step are to be called: publish results first, if any wait.

        A function that ends the process, or takes long, then leaves no paid call in doubt.
        """
        change = self._with_totals(self._waiting, now_us)
        if change.is_empty(self._at):
            return []
        self._waiting = UnitPublish(next=change.next)
        return self._settle(change, self._read())

    def on_batch(self, batch: CallRange, end: FrontEnd | None, now_us: int) -> Actions:
        """The next rows to call for; none if there are no more, or if a step in front ended."""
        if not len(batch.rows):
            waiting = self._waiting.with_letters(batch.letters_below(batch.next))
            self._waiting = replace(waiting, next=batch.next)
            self._end_front(end, now_us)
            return self._finish(now_us)
        if not self._past.calls_of(batch.rows):
            # All results are known already: no intent is needed.
            calls = self._make_calls(batch, is_cut=False)
            return self._settle(self._with_totals(self._waiting, now_us), [calls])
        return self._intend(self._waiting, batch, now_us)

    def on_turn_over(self, now_us: int) -> Actions:
        """The time of the turn is over, or the worker is to stop."""
        return self._finish(now_us)

    def on_read_error(self, now_us: int) -> Actions:
        """Rows could not be read; the worker raises the error after these actions."""
        return self._finish(now_us)

    def _intend(self, before: UnitPublish, batch: CallRange, now_us: int) -> Actions:
        """Publish the waiting results with the intent of the next batch."""
        chosen, share = batch, None
        if self._paid.has_budget:
            calls = self._past.calls_of(batch.rows)
            share = call_budget.take(self._last_share, self._options, calls, now_us)
            if share is None:
                self._add_event(self._paid.event(now_us, JobEventKind.SPENT), TurnEnd.SPENT)
                return self._finish(now_us)
            if not self._paid.calls_batches:
                chosen = batch.cut(share.calls)
        calls = self._past.calls_of(chosen.rows)
        totals = self._totals.plus(calls=calls)
        record = self._paid.intent(now_us, before.next, chosen.next, calls=calls, totals=totals)
        change = replace(before, records=(record,), budget=_listed(share))
        self._sending = SendingIntent(
            before=before, batch=batch, chosen=chosen, share=share, totals=totals
        )
        return [
            OpenCallFile(before.next, chosen.rows.offsets, dict(self._past.results)),
            PublishChange(change, "publish" if change.outputs else "intent"),
        ]

    # Answers of the publisher.
    def on_published(self, last_share: BudgetShare | None) -> Actions:
        """The change is published. `last_share` is the last one of the budget now."""
        self._last_share = last_share
        sending, self._sending = self._sending, None
        match sending:
            case SendingIntent(
                before=before, batch=batch, chosen=chosen, share=share, totals=totals
            ):
                self._at = before.next
                self._totals = self._recorded = totals
                self._share, self._has_file = share, True
                return [SwitchCallFile(), self._make_calls(chosen, is_cut=chosen is not batch)]
            case SendingRetry(share, totals):
                self._totals = self._recorded = totals
                self._retries += 1
                wait_us = 0
                if share is not None:
                    wait_us = share.wait_us(0, share.at_us, self._options.rate)
                return [WaitForRate(wait_us)]
            case SendingResults(change, _, then):
                return self._settled(change, then)
            case None:
                pass
        raise AssertionError("nothing was being published")

    def on_budget_moved(self, last_share: BudgetShare | None, now_us: int) -> Actions:
        """Another worker took from the budget first: nothing was published."""
        self._last_share = last_share
        sending, self._sending = self._sending, None
        match sending:
            case SendingIntent(before=before, batch=batch):
                return [DiscardNewCallFile(), *self._intend(before, batch, now_us)]
            case SendingRetry():
                return self.on_retry(now_us)
            case SendingResults(change, point, then):
                assert last_share is not None, "calls that are given back were taken before"
                calls = -change.budget[-1].calls
                back = call_budget.give_back(last_share, calls, now_us)
                return self._settle(replace(change, budget=(back,)), list(then), point)
            case None:
                pass
        raise AssertionError("nothing was being published")

    # The calls.
    def _make_calls(self, batch: CallRange, *, is_cut: bool) -> MakeCalls:
        self._calling = BatchInWork(batch, self._past.calls_of(batch.rows), is_cut)
        self._is_spent, self._retries = False, 0
        past = self._past
        return MakeCalls(batch.rows, past.known(batch.rows), past.are_doubted(batch.rows))

    def on_call_due(self, number: int, now_us: int) -> int:
        """How long the call of this number waits because of the rate, in microseconds."""
        if self._share is None:
            return 0
        return self._share.wait_us(number, now_us, self._options.rate)

    def on_retry(self, now_us: int) -> Actions:
        """A call raised and is to be made once more: record it first."""
        assert self._calling is not None
        share = None
        if self._paid.has_budget:
            share = call_budget.take(self._last_share, self._options, 1, now_us)
            if share is None:
                self._is_spent = True
                return [StopCalls()]
        totals = self._totals.plus(calls=1)
        # A retry leaves as much in doubt as its intent did.
        next_, calls = self._calling.batch.next, self._calling.calls
        record = self._paid.retry(now_us, self._at, next_, calls=calls, totals=totals)
        self._sending = SendingRetry(share, totals)
        change = UnitPublish(next=self._at, records=(record,), budget=_listed(share))
        return [PublishChange(change, "retry")]

    def on_called(self, called: BatchOutcome, now_us: int) -> Actions:
        """The outcome of the calls for a batch."""
        calling, self._calling = self._calling, None
        assert calling is not None
        batch, left_out = calling.batch, called.left_out
        self._past.settle(batch.rows.offsets[: called.done].tolist())
        dead = len(left_out) if self._options.on_error == "dead_letter" else 0
        self._totals = self._totals.plus(
            errors=called.errors, skipped=len(left_out), dead_letters=dead
        )
        is_whole = called.done == len(batch.rows)
        next_ = batch.next if is_whole else int(batch.rows.offsets[called.done])
        notes, step = self._paid.notes, self._paid.step
        letters = [notes.letter(now_us, step, batch.rows, f) for f in left_out[:dead]]
        self._waiting = UnitPublish(
            next=next_,
            outputs=(called.out.batch,) if len(called.out) else (),
            letters=self._letters(batch, next_, letters),
        )
        if called.failed is not None:
            event = notes.failed(now_us, step.name, next_, called.failed)
            self._add_event(event, TurnEnd.FAILED)
        elif called.stuck:
            event = self._paid.event(now_us, JobEventKind.STUCK, offset=next_)
            self._add_event(event, TurnEnd.STUCK)
        elif self._is_spent:
            self._add_event(self._paid.event(now_us, JobEventKind.SPENT), TurnEnd.SPENT)
        if not is_whole:
            self._settle_unmade(calling, called, now_us)
        goes_on = is_whole and self._end is TurnEnd.OVER and not calling.is_cut
        return [
            *_counted(len(left_out), dead),
            *(self._read() if goes_on else self._finish(now_us)),
        ]

    def _settle_unmade(self, calling: BatchInWork, called: BatchOutcome, now_us: int) -> None:
        """Nothing of the intent is in doubt: record it, and give back calls that were not made."""
        unmade = max(0, calling.calls - (called.calls - self._retries))
        self._totals = self._totals.plus(calls=-unmade, in_doubt=called.wasted)
        next_ = self._waiting.next
        record = self._paid.settled(now_us, next_, calling.batch.next, self._totals)
        self._waiting = replace(
            self._waiting, records=(record,), budget=self._given_back(unmade, now_us)
        )

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
        self._at = change.next
        if change.records:
            self._recorded = self._totals
        had_file, self._has_file = self._has_file, False
        return [RemoveCallFile(), *then] if had_file else list(then)

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


def _counted(skipped: int, dead_letters: int) -> Actions:
    return [CountRows(skipped, dead_letters)] if skipped else []


def _listed(share: BudgetShare | None) -> tuple[BudgetShare, ...]:
    return () if share is None else (share,)
