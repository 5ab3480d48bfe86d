"""A turn on a unit whose calls are recorded before they are made.

Invariant: no call is made before its intent is durable, and an intent is written only together with
the results of the batch before it. So at most one batch of a worker is ever without results when it
dies. Of that batch its flight tells which calls were under way: only these are in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from millrace.faults import fault
from millrace.pipeline.calling.call_failures import Failure, Stopped
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.function_caller import BatchOutcome, FunctionCaller, KnownCalls, Row
from millrace.pipeline.core.call_records import CallRecord, CallRecordKind, Totals
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.worker import call_budget as budgets
from millrace.pipeline.worker.call_budget import BudgetShare
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_ranges import CallRange, CallRanges
from millrace.pipeline.worker.call_recovery import Result, recover, rows_of
from millrace.pipeline.worker.publisher import BudgetMoved, Publisher, UnitPublish
from millrace.pipeline.worker.turn import LeasedUnit, TurnEnd, now_us


@dataclass(slots=True, kw_only=True)
class ExpensiveTurn:
    """Batch by batch: intent, call, results with the next intent."""

    held: LeasedUnit
    caller: FunctionCaller
    ranges: CallRanges
    publisher: Publisher
    flights: CallFiles
    totals: Totals
    """Of the unit, as of the last record."""
    unsettled: CallRecord | None
    """The calls that a worker before this one was about to make when it died."""
    known: dict[int, Result] = field(default_factory=dict)
    """What came of calls of that worker, by the offsets of their rows."""
    doubted: frozenset[int] = frozenset()
    """Rows for which it may have made a call of which nothing is known."""
    flight: CallFile | None = None
    """Of the batch in hand."""
    ended: TurnEnd = TurnEnd.OVER
    recorded: Totals | None = None
    taken: BudgetShare | None = None
    """From the budget, for the batch in hand."""
    retries: int = 0

    def run(self) -> TurnEnd:
        """Work until the turn is over or something ends it."""
        self.recorded = self.totals
        try:
            if self.unsettled is None:
                self.flights.forget()
            if self.unsettled is None or self._recover(self.unsettled):
                self._batches(UnitPublish(next=self.publisher.at))
        finally:
            # What is published is removed before: the next worker may need the rest.
            if self.flight is not None:
                self.flight.close()
        return self.ended

    def _batches(self, change: UnitPublish) -> None:
        """Call batch by batch."""
        while True:
            batch = self._next(change)
            if batch is None:
                break
            if not len(batch.rows):
                change.next = batch.next
                self._note_failed_query(change)
                break
            if not self._calls_of(batch.rows):
                self._settle(change)
                change = self._call(batch)
                continue
            chosen = self._begin(change, batch)
            if chosen is None:
                change.events.append(self.held.event(JobEventKind.SPENT, self.step))
                self.ended = TurnEnd.SPENT
                break
            change = self._call(chosen)
            if chosen is not batch:
                break  # The budget allowed a part of it: the rest is read again.
        if self.known:
            # Something ended the turn before the rows in front of these were settled.
            self.totals = self.totals.plus(in_doubt=len(self.known))
            change.records = [replace(record, totals=self.totals) for record in change.records]
        self._settle(change)

    def _next(self, change: UnitPublish) -> CallRange | None:
        """The next batch, if the turn goes on; what it raises does not lose results that wait."""
        try:
            if self.ended is not TurnEnd.OVER or not self._goes_on():
                return None
            return self.ranges.next(self._goes_on)
        except BaseException:
            self._settle(change)
            raise

    def _note_failed_query(self, change: UnitPublish) -> None:
        failed = self.ranges.failed
        if failed is not None:
            change.events.append(self.held.failed(failed.step, failed.offset, failed.failure))
            self.ended = TurnEnd.FAILED

    @property
    def step(self) -> str:
        """The step that is called."""
        return self.caller.step.name

    def _goes_on(self) -> bool:
        # Results of a dead worker that wait for a row before theirs would be lost with the turn.
        return not self.held.is_ending() if self.known else self.held.goes_on()

    # What a dead worker left.
    def _recover(self, record: CallRecord) -> bool:
        """Publish what is known of its calls; whether to go on with those that are in doubt."""
        batch = self.ranges.up_to(record.next)
        flown = self.flights.take(record)
        found = recover(self.held, self.caller, batch, record.calls, flown)
        self.totals = self.totals.plus(**found.counts)
        change = found.change
        unmade, budget = -found.counts.get("calls", 0), self.publisher.budget
        if unmade and budget is not None:
            budget.refresh()
            if budget.last is not None:
                change.taken.append(budgets.give_back(budget.last, unmade, now_us()))
        if found.held is not None:
            self._hold(record, change, found.held)
            return False
        settled = self._record(CallRecordKind.SETTLED, change.next, change.next, 0, self.totals)
        change.records.append(settled)
        self.recorded = self.totals
        self._settle(change)
        self.flights.forget()
        self.known, self.doubted = found.known, found.doubted
        self.ranges.put_back(batch.rows.slice(found.done, len(batch.rows)))
        return True

    def _hold(self, record: CallRecord, change: UnitPublish, rows: HopRows) -> None:
        """Publish what is known, and leave calls in doubt to the user."""
        calls, first, next_ = self._calls_of(rows), change.next, int(rows.offsets[-1]) + 1
        if self.totals != self.recorded or (first, next_) != (record.first, record.next):
            narrower = self._record(CallRecordKind.INTENT, first, next_, calls, self.totals)
            change.records.append(narrower)
        event = self.held.event(JobEventKind.HELD, self.step, first=first, next=next_, calls=calls)
        change.events.append(event)
        self.recorded = self.totals
        self._settle(change, "hold")
        self.flights.forget()
        self.ended = TurnEnd.HELD

    # Before the calls.
    def _begin(self, change: UnitPublish, batch: CallRange) -> CallRange | None:
        """Publish what was done, with the intent of the next batch; None if no call may be made."""
        while True:
            chosen, taken = batch, None
            if self.publisher.budget is not None:
                taken = self._take(batch.rows)
                if taken is None:
                    return None
                if self.caller.step.calling.rows == "row":
                    chosen = batch.cut(taken.calls)
            calls = self._calls_of(chosen.rows)
            totals = self.totals.plus(calls=calls)
            record = self._record(CallRecordKind.INTENT, change.next, chosen.next, calls, totals)
            wanted = replace(change, records=[record], taken=_listed(taken))
            flight = self._flight(change.next, chosen.rows)
            try:
                self.publisher.publish(wanted, "intent" if not change.outputs else "publish")
            except BudgetMoved:
                assert self.publisher.budget is not None
                self.publisher.budget.refresh()
                flight.remove()
                continue
            except BaseException:
                flight.close()  # Nobody knows whether the intent was written.
                raise
            self._forget_flight()
            self.totals = self.recorded = totals
            self.taken, self.retries, self.flight = taken, 0, flight
            return chosen

    def _flight(self, first: int, rows: HopRows) -> CallFile:
        """Where the calls of a batch are marked; made before the intent that it belongs to."""
        flight = self.flights.open(first, slots=self.caller.options.concurrency)
        flight.next_batch(self.step, rows.offsets)
        for offset, result in self.known.items():
            flight.known(offset, result)
        return flight

    def _forget_flight(self) -> None:
        """What the last batch came to is published."""
        if self.flight is not None:
            self.flight.remove()
            self.flight = None

    def _take(self, rows: HopRows) -> BudgetShare | None:
        budget = self.publisher.budget
        assert budget is not None
        if not budget.is_known:
            budget.refresh()
        return budgets.take(budget.last, budget.options, self._calls_of(rows), now_us())

    def _calls_of(self, rows: HopRows) -> int:
        """How many calls rows need: none for those that are known, or out of attempts."""
        past, retries = self._past(rows), self.caller.options.retries
        spent = sum(attempts > retries for attempts in past.attempts.values())
        if self.caller.step.calling.rows == "batch":
            return 1 - spent
        return len(rows) - len(past.settled) - spent

    def _past(self, rows: HopRows) -> KnownCalls:
        """What is known of rows before they are called for."""
        step, options = self.caller.step, self.caller.options
        attempts = self.held.deaths.past(step.name, rows, step.calling.rows, options.retries)
        settled: dict[int, list[Row] | Failure] = {}
        if self.known:
            for place, offset in enumerate(rows.offsets.tolist()):
                result = self.known.get(offset)
                if isinstance(result, Failure):
                    settled[place] = replace(result, place=place)
                elif result is not None:
                    settled[place] = rows_of(result, self.caller)
        return KnownCalls(attempts, settled)

    def _record(
        self, kind: CallRecordKind, first: int, next_: int, calls: int, totals: Totals
    ) -> CallRecord:
        return CallRecord(
            at_us=now_us(),
            epoch=self.held.lease.epoch,
            kind=kind,
            first=first,
            next=next_,
            calls=calls,
            totals=totals,
        )

    # The calls.
    def _call(self, batch: CallRange) -> UnitPublish:
        hooks = _Recording(self, batch)
        planned = self._calls_of(batch.rows)
        fault("worker.call.before")
        called = call_for(
            self.caller,
            batch.rows,
            self.held.journal.id,
            hooks,
            in_doubt=not self.doubted.isdisjoint(batch.rows.offsets.tolist()),
            flight=self.flight,
            past=self._past(batch.rows),
        )
        fault("worker.call.after")
        for offset in batch.rows.offsets[: called.done].tolist():
            self.known.pop(offset, None)
        self._count(called)
        is_whole = called.done == len(batch.rows)
        next_ = batch.next if is_whole else int(batch.rows.offsets[called.done])
        change = UnitPublish(next=next_, outputs=[called.out.batch] if len(called.out) else [])
        self._bury(change, called, batch)
        if called.failed is not None:
            change.events.append(self.held.failed(self.step, next_, called.failed))
            self.ended = TurnEnd.FAILED
        elif called.stuck:
            change.events.append(self.held.event(JobEventKind.STUCK, self.step, offset=next_))
            self.ended = TurnEnd.STUCK
        elif hooks.is_spent:
            change.events.append(self.held.event(JobEventKind.SPENT, self.step))
            self.ended = TurnEnd.SPENT
        if not is_whole:
            self._unmade(change, called, batch, planned)
        return change

    def _count(self, called: BatchOutcome) -> None:
        tally, step = self.held.tally, self.step
        tally.add(tally.calls, step, called.calls)
        tally.add(tally.errors, step, called.errors)
        tally.add(tally.skipped, step, len(called.left_out))
        tally.add(tally.in_function, step, called.seconds)
        tally.add(tally.rows_in, step, called.done)
        tally.add(tally.rows_out, step, len(called.out))
        self.totals = self.totals.plus(errors=called.errors, skipped=len(called.left_out))

    def _bury(self, change: UnitPublish, called: BatchOutcome, batch: CallRange) -> None:
        """Rows that were left out as dead letters, if the step keeps these."""
        if self.caller.options.on_error != "dead_letter" or not called.left_out:
            return
        change.letters[self.step] = [
            self.held.letter(self.caller.step, batch.rows, f) for f in called.left_out
        ]
        self.totals = self.totals.plus(dead_letters=len(called.left_out))
        self.held.tally.add(self.held.tally.dead_letters, self.step, len(called.left_out))

    def _unmade(
        self, change: UnitPublish, called: BatchOutcome, batch: CallRange, planned: int
    ) -> None:
        """Nothing of the intent is in doubt: say so, and give back calls that were not made."""
        unmade = max(0, planned - (called.calls - self.retries))
        self.totals = self.totals.plus(calls=-unmade, in_doubt=called.wasted)
        budget = self.publisher.budget
        if unmade and budget is not None and budget.last is not None:
            change.taken.append(budgets.give_back(budget.last, unmade, now_us()))
        change.records.append(
            self._record(CallRecordKind.SETTLED, change.next, batch.next, 0, self.totals)
        )
        self.recorded = self.totals
        if self.ended is TurnEnd.OVER:
            self.held.is_over = True

    def _settle(self, change: UnitPublish, point: str = "settle") -> None:
        """Publish what was done; totals that no intent will carry get a record."""
        if self.totals != self.recorded and not change.records:
            record = self._record(CallRecordKind.SETTLED, change.next, change.next, 0, self.totals)
            change.records.append(record)
        while True:
            try:
                self.publisher.publish(change, point)
            except BudgetMoved:
                budget = self.publisher.budget
                assert budget is not None
                budget.refresh()
                assert budget.last is not None, "what is given back was taken before"
                back = -change.taken[-1].calls
                change.taken = [budgets.give_back(budget.last, back, now_us())]
            else:
                self._forget_flight()
                return

    def record_retry(self, batch: CallRange) -> float:
        """Write down that a call is made once more; how long it is to wait."""
        while True:
            taken, wait_us = None, 0
            budget = self.publisher.budget
            if budget is not None:
                taken = budgets.take(budget.last, budget.options, 1, now_us())
                if taken is None:
                    raise _Spent
                wait_us = taken.wait_us(0, now_us(), budget.options.rate)
            totals = self.totals.plus(calls=1)
            # A retry leaves as much in doubt as its intent did.
            doubted = self._calls_of(batch.rows)
            record = self._record(
                CallRecordKind.RETRY, self.publisher.at, batch.next, doubted, totals
            )
            change = UnitPublish(next=self.publisher.at, records=[record], taken=_listed(taken))
            try:
                self.publisher.publish(change, "retry")
            except BudgetMoved:
                assert budget is not None
                budget.refresh()
                continue
            self.totals = self.recorded = totals
            self.retries += 1
            return wait_us / 1_000_000


class _Spent(Stopped):
    """The budget is used up."""


@dataclass(slots=True)
class _Recording:
    """What has to happen before each call of a batch."""

    turn: ExpensiveTurn
    batch: CallRange
    is_spent: bool = False

    def delay_s(self, number: int) -> float:
        """How long the call of this number is to wait for its place in the rate."""
        if self.turn.held.is_ending():
            raise Stopped
        taken, budget = self.turn.taken, self.turn.publisher.budget
        if taken is None or budget is None:
            return 0.0
        return taken.wait_us(number, now_us(), budget.options.rate) / 1_000_000

    def again(self, number: int) -> float:
        """Record a retry."""
        del number
        if self.turn.held.is_ending():
            raise Stopped
        try:
            return self.turn.record_retry(self.batch)
        except _Spent:
            self.is_spent = True
            raise

    def sleep(self, seconds: float) -> None:
        """Wait, unless the worker is to end."""
        if seconds > 0:
            self.turn.held.sleep(seconds)


def _listed(taken: BudgetShare | None) -> list[BudgetShare]:
    return [] if taken is None else [taken]
