"""Decides about the calls of an expensive step on one unit, so that none is paid for twice. Pure.

Calls slide: `concurrency` calls are under way all the time, and a few more are recorded ahead, so
that the next call need not wait for its record. Results are published as they come, together with
the record of the calls that follow. `on_*` methods take events and return actions; `on_idle` says
what to do next when all outcomes are given.

Invariant: no call is made before a record that covers it is durable. The call files say which calls
of the last record are under way: only these are in doubt behind a dead worker.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.pipeline.core.call_outcomes import CallOutcome, Failure, LeftCalls
from millrace.pipeline.core.call_ranges import (
    CallRange,
    FrontEnd,
)
from millrace.pipeline.core.call_recovery import recover_calls
from millrace.pipeline.core.call_window import SlidingCall, without
from millrace.pipeline.core.expensive_actions import (
    Actions,
    CountRows,
    EndTurn,
    ForgetCallFiles,
    GoOn,
    KeepResults,
    ReadLeftCalls,
    ReadMoreRows,
    Wait,
    WithdrawCalls,
)
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.paid_step import is_last_attempt
from millrace.pipeline.core.paid_turn import PaidTurn
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_records import CallRecordKind


class ExpensiveMachine(PaidTurn):
    """One turn of a worker on a unit of an expensive step."""

    # What the last worker left.
    def on_start(self) -> Actions:
        """Begin the turn."""
        if self._left is not None and self._left.kind is not CallRecordKind.SETTLED:
            return [ReadLeftCalls(self._left)]
        return [ForgetCallFiles()]

    def on_left_calls(self, range_: CallRange, left: LeftCalls | None, now_us: int) -> Actions:
        """The rows of the dead worker's record, and its call files if this host has them."""
        assert self._left is not None, "asked for because of it"
        own = replace(range_, rows=without(range_.rows, self._left.published))
        recovered = recover_calls(self._paid, self._deaths, own, self._left, left, now_us)
        if recovered.on_hold is not None:
            first, next_, calls = recovered.on_hold
            event = self._paid.event(
                now_us, JobEventKind.HELD, first=first, next=next_, calls=calls
            )
            self._end = TurnEnd.HELD
            change = UnitPublish(next=self._window.at, events=(event,))
            return self._send(change, "hold", then=[EndTurn(TurnEnd.HELD, keeps_file=True)])
        before, self._totals = self._totals, recovered.totals
        self._charges += recovered.charges
        self._events += recovered.events
        counts = (
            self._totals.skipped - before.skipped,
            self._totals.dead_letters - before.dead_letters,
        )
        self._window.add(range_, recovered.calls)
        self._window.read_to = max(self._window.read_to, range_.next)
        self._give_up_ended()
        self._recorded_kind = CallRecordKind.INTENT  # Whatever follows is recorded anew.
        results = self._publishable()
        leaving = {call.first for call in results}
        kept = tuple(call for call in self._window.kept() if call.first not in leaving)
        actions: Actions = [CountRows(*counts)] if any(counts) else []
        actions += [KeepResults(kept)] if kept else []
        self._has_file_results = bool(kept)
        return [*actions, *self._publish([], now_us, then=[ForgetCallFiles()])]

    def on_left_unread(self, end: FrontEnd, now_us: int) -> Actions:
        """The rows of the dead worker's record cannot be read now: its calls stay as they are."""
        self._end_front(end, now_us)
        change = UnitPublish(next=self._window.at, events=tuple(self._events))
        return self._send(change, "settle", then=[EndTurn(self._end, keeps_file=True)])

    # Rows.
    @property
    def is_empty(self) -> bool:
        """Whether no call is under way, and no result waits to be published."""
        return not self._window.outstanding and not self._publishable() and not self._charges

    def on_rows(self, range_: CallRange, end: FrontEnd | None, now_us: int) -> Actions:
        """Rows that were read; none if there are no more, or if a step in front ended."""
        self._is_dry = not len(range_.rows)
        self._window.add(range_, self._paid.calls_for(range_.rows, self._deaths))
        self._give_up_ended()
        if end is not None and self._is_dry:
            self._end_front(end, now_us)
        return []

    def on_turn_over(self) -> Actions:
        """The time of the turn is over, or the worker is to stop."""
        return self._stop()

    def on_read_error(self) -> Actions:
        """Rows could not be read: the worker raises the error when those before are done."""
        self._is_dry = True
        return []

    # Calls.
    def on_called(self, outcome: CallOutcome, now_us: int) -> Actions:
        """A call has ended."""
        window, call = self._window, self._window.calls[outcome.first]
        window.unrecord(call)
        self._outcomes += 1
        self._pace.on_called(outcome.seconds, is_answer=outcome.refused_s is None)
        self._totals = self._totals.spent(outcome.noted.spend)
        refused_s = outcome.refused_s
        if call.refusals >= self._limits.refusals_max:
            refused_s = None
        is_refused = refused_s is not None
        self._charges.append(
            self._paid.notes.charge(
                at_us=outcome.at_us,
                offset=outcome.first,
                attempt=outcome.attempt,
                noted=outcome.noted,
                seconds=outcome.seconds,
                failure=outcome.failure,
                is_refused=is_refused,
            )
        )
        actions: Actions = []
        if refused_s is not None:
            self._totals = self._totals.plus(calls=-1, refused=1)
            call.refusals += 1
            wait_us = self._pace.backoff_us(call.refusals, outcome.chance)
            window.wait_until(call, now_us + max(wait_us, int(refused_s * 1_000_000)))
        elif outcome.failure is not None:
            self._totals = self._totals.plus(errors=1)
            actions = self._on_failure(call, outcome, now_us)
        else:
            window.settle(call, made=outcome.made)
            self._has_file_results = True
        if outcome.is_stuck and self._end is TurnEnd.OVER:
            self._add_event(self._paid.event(now_us, JobEventKind.STUCK, offset=call.first))
            self._end = TurnEnd.STUCK
            actions += self._stop()
        return actions

    def _on_failure(self, call: SlidingCall, outcome: CallOutcome, now_us: int) -> Actions:
        options, failure = self._options, outcome.failure
        assert failure is not None, "asked for because of it"
        if failure.ends_step:
            return self._give_up(call, failure)
        if not call.is_half and not is_last_attempt(failure, options.retries):
            call.attempt += 1
            wait_us = self._pace.backoff_us(failure.attempts, outcome.chance)
            self._window.wait_until(call, now_us + wait_us)
            return []
        if len(call.rows) > 1 and options.on_error != "fail" and not failure.is_final:
            self._window.halve(call)
            return []
        return self._give_up(call, failure)

    def _give_up(self, call: SlidingCall, failure: Failure) -> Actions:
        """A call is given up: its rows are left out, or fail the step."""
        if self._options.on_error == "fail" or failure.ends_step:
            if self._failed is None or call.first < self._failed[0]:
                self._failed = (call.first, failure)
            self._end = TurnEnd.FAILED
            return self._stop()
        self._window.settle(call, failure=failure)
        count = len(call.rows)
        dead = count if self._options.on_error == "dead_letter" else 0
        self._totals = self._totals.plus(skipped=count, dead_letters=dead)
        return [CountRows(count, dead), GoOn()]

    def _give_up_ended(self) -> None:
        """Give up calls that ended their process too often, without making them again."""
        waiting = self._window.waiting
        for call in [call for call in waiting if call.failure is not None]:
            assert call.failure is not None, "chosen by it"
            waiting.remove(call)
            failure, call.failure = call.failure, None
            self._give_up(call, failure)

    def on_withdrawn(self, firsts: list[int]) -> Actions:
        """These recorded calls were not begun, and will not be."""
        for first in firsts:
            self._window.put_back(first)
        self._totals = self._totals.plus(calls=-len(firsts))
        return []

    def _stop(self) -> Actions:
        """Record no further call in this turn."""
        self._is_over = True
        if self._is_withdrawn:
            return []
        self._is_withdrawn = True
        return [WithdrawCalls()]

    # What to do next.
    def on_idle(self, now_us: int) -> Actions:
        """All outcomes of calls that came in are given."""
        window = self._window
        window.requeue(now_us)
        if self._wants_rows():
            return [ReadMoreRows()]
        new = self._recordable(now_us)
        if self._end is TurnEnd.SPENT and not self._is_over:
            return self._stop()
        is_urgent = bool(new) and window.outstanding < self._limits.concurrency
        is_urgent = is_urgent or window.done_bytes >= self._limits.publish_bytes
        is_urgent = is_urgent or not (window.outstanding or new)
        # One call at a time: the slot waits for the one that failed.
        is_urgent = is_urgent or (self._limits.concurrency == 1 and any(c.is_again for c in new))
        is_drained = not window.outstanding and not new and self._is_ending
        results = self._publishable()
        has_change = bool(results or new or self._charges)
        if has_change and (is_urgent or self._pace.is_due(now_us)) and not is_drained:
            return self._publish(new, now_us)
        if is_drained:
            return self._finish(now_us)
        return [Wait(self._wait_until(has_change=has_change))]

    @property
    def _is_ending(self) -> bool:
        """Whether no call is left for this turn, once those under way have ended."""
        if self._is_over:
            return True
        window = self._window
        is_spent = self._end is TurnEnd.SPENT
        return is_spent or (self._is_dry and not window.waiting and window.retry_us() is None)

    def _wants_rows(self) -> bool:
        window, limits = self._window, self._limits
        if self._is_dry or self._is_over or self._end is not TurnEnd.OVER:
            return False
        if len(window.calls) >= limits.calls_max or window.done_bytes >= limits.done_bytes_max:
            return False
        is_wanted = len(window.waiting) + window.outstanding < self._pace.target
        return is_wanted and (self.is_empty or not limits.drains_front)

    def _recordable(self, now_us: int) -> list[SlidingCall]:
        """The waiting calls that are to be recorded now."""
        window, limits = self._window, self._limits
        if self._is_over or self._end is not TurnEnd.OVER or window.has_alone:
            return []
        room = self._pace.target - window.outstanding
        if window.done_bytes >= limits.done_bytes_max and window.outstanding:
            room = 0
        allowed = None if self._wallet is None else self._allowed()
        is_idle = not window.outstanding or self._is_held
        if allowed == 0 and window.waiting and is_idle:
            self._add_event(self._paid.event(now_us, JobEventKind.SPENT))
            self._end = TurnEnd.SPENT
            return []
        chosen: list[SlidingCall] = []
        for call in window.waiting:
            is_next = call.is_half or (call.is_again and limits.concurrency == 1)
            if len(chosen) >= (len(window.waiting) if is_next else room):
                break
            if not is_next and self._is_held:
                break
            if call.is_alone:
                if not chosen and not window.outstanding:
                    chosen.append(call)
                break
            chosen.append(call)
        return chosen if allowed is None else chosen[:allowed]

    @property
    def _is_held(self) -> bool:
        """Whether the only slot waits for the call that failed."""
        window = self._window
        if self._limits.concurrency > 1:
            return False
        is_next = bool(window.waiting) and window.waiting[0].is_again
        return is_next or window.retry_us() is not None

    def _allowed(self) -> int | None:
        assert self._wallet is not None, "only a step with a budget asks"
        return self._wallet.allows(self._totals, self._window.outstanding)

    def _wait_until(self, *, has_change: bool) -> int | None:
        times = [self._window.retry_us()]
        if has_change:
            times.append(self._pace.due_us)
        known = [at for at in times if at is not None]
        return min(known) if known else None

    # The end.
    def _finish(self, now_us: int) -> Actions:
        """Publish what is left, then end the turn."""
        if self._failed is not None:
            offset, failure = self._failed
            event = self._paid.notes.failed(now_us, self._paid.name, offset, failure)
            self._add_event(event)
            self._failed = None
            self._is_over = True
        results, window = self._publishable(), self._window
        if len(results) < len(window.publishable(None, ordered=self._paid.is_ordered)):
            return self._publish([], now_us)  # More than goes into one transaction.
        keeps = len(results) < sum(1 for _ in window.kept())
        return self._publish([], now_us, then=[EndTurn(self._end, keeps_file=keeps)])
