"""Decides about the calls of an expensive step on one unit, so that none is paid for twice. Pure.

Batch by batch: intent, calls, results with a later intent. `on_*` methods return actions. While
calls take long, the worker reads the next batch and gives it to `on_batch`: its intent is recorded
meanwhile, with the results of the batch before the one that is called for. So calls do not wait for
a journal that is far away.
Invariant: no call is made before its intent is durable. The last record covers all rows from the
committed offset on whose calls may have been made. An intent is recorded ahead for one batch only,
so a dead worker lacks the results of at most two. Its call files say which calls of these were
under way: only these are in doubt.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.pipeline.core import call_budget
from millrace.pipeline.core.call_budget import BudgetShare
from millrace.pipeline.core.call_outcomes import BatchOutcome
from millrace.pipeline.core.call_ranges import CallRange, FrontEnd
from millrace.pipeline.core.expensive_actions import (
    BatchInWork,
    DiscardNewCallFile,
    ForgetCallFiles,
    MakeCalls,
    NextCallFile,
    OpenCallFile,
    PublishChange,
    ReadLeftCalls,
    RemoveCalledFiles,
    SendingIntent,
    SendingMeanwhile,
    SendingResults,
    SendingRetry,
    StopCalls,
    SwitchCallFile,
    WaitForRate,
)
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.paid_turn import Actions, PaidTurn, counted_rows
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish


class ExpensiveMachine(PaidTurn):
    """One turn of a worker on a unit of an expensive step."""

    def on_start(self) -> Actions:
        """Begin the turn."""
        if self._unsettled is not None:
            return [ReadLeftCalls(self._unsettled)]
        return [ForgetCallFiles(), *self._read()]

    # Before the calls.
    def on_front_due(self, now_us: int) -> Actions:
        """Functions in front of the step are to be called: publish results first, if any wait.

        A function that ends the process, or takes long, then leaves no paid call in doubt.
        """
        change = self._with_totals(self._waiting, now_us)
        if change.is_empty(self._at):
            return []
        self._waiting = UnitPublish(next=change.next)
        return self._settle(change, self._read())

    @property
    def goes_ahead(self) -> bool:
        """Whether the next batch may be given while the calls of this one are under way.

        Calls of a budget are taken one batch at a time, and calls in doubt are made alone.
        """
        assert self._calling is not None
        has_past = bool(self._past.results) or self._past.is_suspect(self._calling.batch.rows)
        return not (self._paid.has_budget or has_past or self._ahead or self._read_ahead)

    def on_batch(self, batch: CallRange, end: FrontEnd | None, now_us: int) -> Actions:
        """The next rows to call for; none if there are no more, or if a step in front ended."""
        if self._calling is not None:
            if len(batch.rows) and not self._past.is_suspect(batch.rows):
                return self._intend(self._waiting, batch, now_us)
            self._read_ahead = (batch, end)
            return self._publish_meanwhile(now_us)
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
        return self._finish(now_us) if self._calling is None else self._publish_meanwhile(now_us)

    def on_read_error(self, now_us: int) -> Actions:
        """Rows could not be read; the worker raises the error after these actions."""
        if self._calling is None:
            return self._finish(now_us)
        self._has_read_error = True
        return self._publish_meanwhile(now_us)

    def _publish_meanwhile(self, now_us: int) -> Actions:
        """Publish the waiting results while calls are under way, whose intent is recorded anew."""
        assert self._calling is not None
        change, calling = self._waiting, self._calling
        if change.is_empty(self._at):
            return []
        record = self._paid.intent(
            now_us, change.next, calling.batch.next, calls=calling.calls, totals=self._totals
        )
        change = replace(change, records=(record,))
        self._sending = SendingMeanwhile(change)
        return [PublishChange(change, "publish")]

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
        calling = self._calling
        planned, first = calls, before.next
        if calling is not None:
            planned, first = calls + calling.calls, calling.batch.next
        record = self._paid.intent(now_us, before.next, chosen.next, calls=planned, totals=totals)
        change = replace(before, records=(record,), budget=_listed(share))
        self._sending = SendingIntent(
            before=before, batch=batch, chosen=chosen, share=share, totals=totals
        )
        return [
            OpenCallFile(first, chosen.rows.offsets, dict(self._past.results)),
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
                self._published_to(before.next)
                self._totals = self._recorded = totals
                if self._calling is not None:
                    self._ahead = self._in_work(chosen, is_cut=False)
                    return [RemoveCalledFiles()]
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
            case SendingMeanwhile(change):
                self._published_to(change.next)
                self._recorded = self._totals
                return [RemoveCalledFiles()]
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
            case SendingMeanwhile() | None:
                pass
        raise AssertionError("nothing was being published")

    # The calls.
    def _make_calls(self, batch: CallRange, *, is_cut: bool) -> MakeCalls:
        self._calling = self._in_work(batch, is_cut=is_cut)
        self._is_spent, self._retries = False, 0
        past = self._past
        return MakeCalls(batch.rows, past.known(batch.rows), past.are_doubted(batch.rows))

    def _in_work(self, batch: CallRange, *, is_cut: bool) -> BatchInWork:
        return BatchInWork(batch, self._past.calls_of(batch.rows), is_cut)

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
        # A retry leaves as much in doubt as the intents did.
        last = self._ahead or self._calling
        calls = self._waiting_calls + self._calling.calls
        calls, next_ = calls + (self._ahead.calls if self._ahead else 0), last.batch.next
        record = self._paid.retry(now_us, self._at, next_, calls=calls, totals=totals)
        self._sending = SendingRetry(share, totals)
        change = UnitPublish(next=self._at, records=(record,), budget=_listed(share))
        return [PublishChange(change, "retry")]

    def on_called(self, called: BatchOutcome, now_us: int) -> Actions:
        """The outcome of the calls for a batch."""
        calling, self._calling = self._calling, None
        assert calling is not None
        ahead, self._ahead = self._ahead, None
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
        results = UnitPublish(
            next=next_,
            outputs=(called.out.batch,) if len(called.out) else (),
            letters=self._letters(batch, next_, letters),
        )
        self._waiting = self._waiting.then(results)
        self._waiting_calls += calling.calls
        if called.failed is not None:
            event = notes.failed(now_us, step.name, next_, called.failed)
            self._add_event(event, TurnEnd.FAILED)
        elif called.stuck:
            event = self._paid.event(now_us, JobEventKind.STUCK, offset=next_)
            self._add_event(event, TurnEnd.STUCK)
        elif self._is_spent:
            self._add_event(self._paid.event(now_us, JobEventKind.SPENT), TurnEnd.SPENT)
        goes_on = is_whole and self._end is TurnEnd.OVER and not calling.is_cut
        goes_on = goes_on and not self._has_read_error
        if not is_whole or (ahead is not None and not goes_on):
            self._settle_unmade(calling, ahead, called, now_us)
        return [
            *counted_rows(len(left_out), dead),
            *self._after_calls(ahead, now_us, goes_on=goes_on),
        ]

    def _after_calls(self, ahead: BatchInWork | None, now_us: int, *, goes_on: bool) -> Actions:
        read, self._read_ahead = self._read_ahead, None
        if not goes_on:
            return self._finish(now_us)
        if ahead is not None:
            return [NextCallFile(), self._make_calls(ahead.batch, is_cut=False)]
        return self._read() if read is None else self.on_batch(*read, now_us)

    def _settle_unmade(
        self, calling: BatchInWork, ahead: BatchInWork | None, called: BatchOutcome, now_us: int
    ) -> None:
        """Nothing of the intents is in doubt: record it, and give back calls that were not made."""
        unmade = max(0, calling.calls - (called.calls - self._retries))
        unmade += 0 if ahead is None else ahead.calls
        self._totals = self._totals.plus(calls=-unmade, in_doubt=called.wasted)
        next_, last = self._waiting.next, ahead or calling
        record = self._paid.settled(now_us, next_, last.batch.next, self._totals)
        self._waiting = replace(
            self._waiting, records=(record,), budget=self._given_back(unmade, now_us)
        )


def _listed(share: BudgetShare | None) -> tuple[BudgetShare, ...]:
    return () if share is None else (share,)
