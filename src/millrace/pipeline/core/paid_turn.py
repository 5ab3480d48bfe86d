"""A turn on a unit of an expensive step: what it holds, and what it publishes. Pure.

The state of the machine of an expensive step, and the parts of it that make no calls.
Invariant: each transaction has one record, which covers all rows from the new committed offset on
whose calls may have been made and whose results it does not publish.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.call_ranges import (
    FrontEnd,
    FrontFailed,
    FrontStopped,
    FrontStuck,
)
from millrace.pipeline.core.call_window import CallWindow, SlidingCall
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.expensive_actions import (
    Actions,
    PublishChange,
    Sending,
    StartCalls,
)
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.paid_step import PaidStep
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.core.window_pace import WindowPace
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.paid.call_budget import BudgetShare, Wallet
from millrace.pipeline.paid.call_records import CallRecord, CallRecordKind, Held, Totals
from millrace.pipeline.paid.charges import CallCharge


class PaidTurn:
    """The state of a turn. `ExpensiveMachine` decides about its calls."""

    def __init__(
        self,
        paid: PaidStep,
        *,
        at: int,
        totals: Totals,
        last: CallRecord | None,
        deaths: Deaths,
        held: Held,
        wallet: Wallet | None = None,
    ) -> None:
        """Take over a unit.

        Args:
            paid: the step.
            at: the unit's committed offset.
            totals: of the unit, as of the last record.
            last: the last record, if it says something about rows from `at` on.
            deaths: calls that ended their process; new ones are added.
            held: what the unit holds of the step's budget, as of the last record.
            wallet: decides about that, if the step has a budget now.
        """
        self._paid, self._options, self._limits = paid, paid.step.options, paid.limits
        self._totals = self._recorded_totals = totals
        self._left, self._deaths, self._wallet, self._held = last, deaths, wallet, held
        published = () if last is None else last.published
        self._window = CallWindow(at=at, read_to=at, published=published)
        self.rows_done = 0
        """Rows that this turn has published results of, or left out."""
        self._pace = WindowPace(paid.limits)
        self._charges: list[CallCharge] = []
        self._outcomes = 0
        self._events: list[JobEvent] = []
        self._sending: Sending | None = None
        self._recorded_kind = CallRecordKind.SETTLED
        self._has_file_results = False
        self._is_dry = self._is_over = self._is_withdrawn = False
        self._failed: tuple[int, Failure] | None = None
        self._end = TurnEnd.OVER

    # Publishing.
    def _publishable(self) -> list[SlidingCall]:
        return self._window.publishable(self._limits.publish_bytes, ordered=self._paid.is_ordered)

    def _publish(
        self, new: list[SlidingCall], now_us: int, *, then: Actions | None = None
    ) -> Actions:
        """Publish results, with a record of the calls that are under way then."""
        window = self._window
        results = self._publishable()
        next_ = window.next_behind(results)
        totals = self._totals.plus(calls=len(new))
        outstanding = window.outstanding + len(new)
        share = None
        if self._wallet is not None and (new or not outstanding):
            share = self._wallet.share(totals, outstanding, now_us)
        record = CallRecord(
            at_us=now_us,
            epoch=self._paid.epoch,
            kind=CallRecordKind.SETTLED,
            first=next_,
            next=next_,
            calls=outstanding,
            outcomes=self._outcomes,
            published=window.published_behind(results, next_),
            totals=totals,
            held=self._held if share is None else self._held.plus(share.change),
        )
        change = UnitPublish(
            next=next_,
            outputs=tuple(call.made for call in results if call.made is not None),
            records=(self._covering(record, new, results),),
            budget=() if share is None else (share,),
            letters=self._letters(results, next_, now_us),
            events=tuple(self._events),
            charges=tuple(self._charges),
        )
        point = "publish" if results else "intent"
        if not new and not outstanding:
            point = "settle"
        return self._send(
            change, point, then=then or [], results=tuple(results), recorded=tuple(new)
        )

    def _covering(
        self, record: CallRecord, new: list[SlidingCall], results: list[SlidingCall]
    ) -> CallRecord:
        """A record of the calls that are under way behind it, or whose results wait."""
        leaving = {call.first for call in results}
        covered = [call.end for call in new]
        covered += [
            call.end
            for call in self._window.calls.values()
            if call.is_recorded or (call.is_done and call.first not in leaving)
        ]
        if not covered:
            return record
        return replace(record, kind=CallRecordKind.INTENT, next=max(covered))

    def _send(
        self,
        change: UnitPublish,
        point: str,
        *,
        then: Actions,
        results: tuple[SlidingCall, ...] = (),
        recorded: tuple[SlidingCall, ...] = (),
    ) -> Actions:
        if point == "settle" and self._is_nothing(change):
            return then
        self._pace.on_sent(change.records[-1].at_us if change.records else 0)
        self._sending = Sending(
            change=change, point=point, results=results, recorded=recorded, then=then
        )
        return [PublishChange(change, point)]

    def _is_nothing(self, change: UnitPublish) -> bool:
        """Whether a change only repeats the last record."""
        plain = replace(change, records=())
        is_same = self._recorded_kind is CallRecordKind.SETTLED
        is_same = is_same and self._totals == self._recorded_totals
        return is_same and plain.is_empty(self._window.at)

    def on_published(self, last_share: BudgetShare | None, now_us: int) -> Actions:
        """The change is published. `last_share` is the last one of the budget now."""
        sending, self._sending = self._sending, None
        assert sending is not None, "something was being published"
        change, window = sending.change, self._window
        published = change.records[-1].published if change.records else window.published
        self.rows_done += sum(len(call.rows) for call in sending.results)
        window.remove(list(sending.results), change.next, published)
        window.drop_letters(change.next)
        self._events.clear()
        self._charges.clear()
        if change.records:
            self._recorded_totals = self._totals = change.records[-1].totals
            self._recorded_kind = change.records[-1].kind
            self._held = change.records[-1].held
        if self._wallet is not None:
            self._wallet.on_published(change.budget[-1] if change.budget else None, last_share)
        for call in sending.recorded:
            window.waiting.remove(call)
            window.record(call)
        self._pace.on_published(now_us)
        started: Actions = [StartCalls(sending.recorded)] if sending.recorded else []
        return [*started, *sending.then]

    def on_budget_moved(self, last_share: BudgetShare | None, now_us: int) -> Actions:
        """Another worker took from the budget first: nothing was published."""
        sending, self._sending = self._sending, None
        assert sending is not None, "something was being published"
        assert self._wallet is not None, "only a step with a budget has shares"
        self._wallet.last = last_share
        if sending.then:
            return self._publish([], now_us, then=sending.then)
        return []

    def _letters(
        self, results: list[SlidingCall], next_: int, now_us: int
    ) -> dict[str, tuple[Letter, ...]]:
        """Dead letters by step: those of the steps in front below an offset, and its own."""
        by_step: dict[str, list[Letter]] = {}
        for step, letter in self._window.letters_below(next_):
            by_step.setdefault(step, []).append(letter)
        is_kept = self._options.on_error == "dead_letter"
        own = [
            letter
            for call in results
            if call.failure is not None and (is_kept or call.failure.kind == "InDoubt")
            for letter in self._paid.letters(now_us, call)
        ]
        if own:
            by_step.setdefault(self._paid.name, []).extend(own)
        return {step: tuple(letters) for step, letters in by_step.items()}

    def _end_front(self, end: FrontEnd, now_us: int) -> None:
        """End the turn as the steps in front ended."""
        self._is_over = True
        match end:
            case FrontFailed(step, offset, failure):
                self._add_event(self._paid.notes.failed(now_us, step, offset, failure))
                self._end = TurnEnd.FAILED
            case FrontStuck(step):
                self._add_event(self._paid.notes.event(now_us, JobEventKind.STUCK, step))
                self._end = TurnEnd.STUCK
            case FrontStopped():
                pass

    def _add_event(self, event: JobEvent) -> None:
        """Add the event that ends the turn to what is published."""
        self._events.append(event)
