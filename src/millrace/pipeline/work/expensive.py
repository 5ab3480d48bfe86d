"""A turn on a unit whose calls are recorded before they are made.

Invariant: no call is made before its intent is durable, and an intent is written only together with
the results of the batch before it. So at most one batch of a worker is ever in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.faults import fault
from millrace.pipeline.calling.caller import Called, Caller
from millrace.pipeline.calling.failing import Failure, Stopped
from millrace.pipeline.calling.kinds import call_for
from millrace.pipeline.core.calls import CallRecord, Kind, Totals
from millrace.pipeline.core.events import Happened
from millrace.pipeline.core.rule import Again, Clear, Doubt, Hold, LeaveOut
from millrace.pipeline.work import budget as budgets
from millrace.pipeline.work.budget import Taken
from millrace.pipeline.work.publishing import BudgetMoved, Change, Publisher
from millrace.pipeline.work.ranges import Range, Ranges
from millrace.pipeline.work.turn import Ended, Held, now_us

_IN_DOUBT = Failure(
    place=0,
    error="in doubt: a worker that died may have made this call",
    traceback="",
)


@dataclass(slots=True, kw_only=True)
class ExpensiveTurn:
    """Batch by batch: intent, call, results with the next intent."""

    held: Held
    caller: Caller
    ranges: Ranges
    publisher: Publisher
    totals: Totals
    """Of the unit, as of the last record."""
    doubt: Doubt
    ended: Ended = Ended.OVER
    recorded: Totals | None = None
    taken: Taken | None = None
    """From the budget, for the batch in hand."""
    retries: int = 0

    def run(self) -> Ended:
        """Work until the turn is over or something ends it."""
        self.recorded = self.totals
        change = Change(next=self.publisher.at)
        given: Range | None = None
        match self.doubt:
            case Hold(record=record):
                return self._hold(record)
            case LeaveOut(next=offset):
                change = self._leave_out(self.ranges.up_to(offset))
            case Again(next=offset):
                given = self.ranges.up_to(offset)
            case Clear():
                pass
        self._batches(change, given)
        return self.ended

    def _batches(self, change: Change, given: Range | None) -> None:
        """Call batch by batch; `given` is one whose calls are in doubt."""
        is_again = given is not None
        while True:
            batch = self._next(change, given)
            given = None
            if batch is None:
                break
            if not len(batch.rows):
                change.next = batch.next
                self._note_failed_query(change)
                break
            chosen = self._begin(change, batch, is_again=is_again)
            if chosen is None:
                change.events.append(self.held.event(Happened.SPENT, self.step))
                self.ended = Ended.SPENT
                break
            change = self._call(chosen, in_doubt=is_again)
            is_again = False
            if chosen is not batch:
                break  # The budget allowed a part of it: the rest is read again.
        self._settle(change)

    def _next(self, change: Change, given: Range | None) -> Range | None:
        """The next batch, if the turn goes on; what it raises does not lose results that wait."""
        try:
            if self.ended is not Ended.OVER or not self.held.goes_on():
                return None
            return given if given is not None else self.ranges.next(self.held.goes_on)
        except BaseException:
            self._settle(change)
            raise

    def _note_failed_query(self, change: Change) -> None:
        failed = self.ranges.failed
        if failed is not None:
            change.events.append(self.held.failed(failed.step, failed.offset, failed.failure))
            self.ended = Ended.FAILED

    @property
    def step(self) -> str:
        """The step that is called."""
        return self.caller.step.name

    def _hold(self, record: CallRecord) -> Ended:
        event = self.held.event(
            Happened.HELD, self.step, first=record.first, next=record.next, calls=record.calls
        )
        self.publisher.publish(Change(next=self.publisher.at, events=[event]), "hold")
        return Ended.HELD

    def _leave_out(self, doubted: Range) -> Change:
        """Move on without the rows in doubt; they become dead letters."""
        rows = doubted.rows
        count = len(rows)
        calls = self._calls_of(count)
        self.totals = self.totals.plus(in_doubt=calls, skipped=count, dead_letters=count)
        self.held.tally.add(self.held.tally.skipped, self.step, count)
        letters = [
            self.held.letter(self.caller.step, rows, replace(_IN_DOUBT, place=place))
            for place in range(count)
        ]
        return Change(next=doubted.next, letters={self.step: letters} if letters else {})

    # Before the calls.
    def _begin(self, change: Change, batch: Range, *, is_again: bool) -> Range | None:
        """Publish what was done, with the intent of the next batch; None if no call may be made."""
        while True:
            chosen, taken = batch, None
            if self.publisher.budget is not None:
                taken = self._take(len(batch.rows))
                if taken is None:
                    return None
                if self.caller.step.calling.rows == "row":
                    chosen = batch.cut(taken.calls)
            calls = self._calls_of(len(chosen.rows))
            doubted = self._calls_of(len(batch.rows)) if is_again else 0
            totals = self.totals.plus(calls=calls, in_doubt=doubted)
            record = self._record(Kind.INTENT, change.next, chosen.next, calls, totals)
            wanted = replace(change, records=[record], taken=_listed(taken))
            try:
                self.publisher.publish(wanted, "intent" if not change.outputs else "publish")
            except BudgetMoved:
                assert self.publisher.budget is not None
                self.publisher.budget.refresh()
                continue
            self.totals = self.recorded = totals
            self.taken, self.retries = taken, 0
            return chosen

    def _take(self, rows: int) -> Taken | None:
        budget = self.publisher.budget
        assert budget is not None
        if not budget.is_known:
            budget.refresh()
        return budgets.take(budget.last, budget.options, self._calls_of(rows), now_us())

    def _calls_of(self, rows: int) -> int:
        return rows if self.caller.step.calling.rows == "row" else 1

    def _record(self, kind: Kind, first: int, next_: int, calls: int, totals: Totals) -> CallRecord:
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
    def _call(self, batch: Range, *, in_doubt: bool) -> Change:
        hooks = _Recording(self, batch)
        fault("worker.call.before")
        journal_id = self.held.journal.id
        called = call_for(self.caller, batch.rows, journal_id, hooks, in_doubt=in_doubt)
        fault("worker.call.after")
        self._count(called)
        is_whole = called.done == len(batch.rows)
        next_ = batch.next if is_whole else int(batch.rows.offsets[called.done])
        change = Change(next=next_, outputs=[called.out.batch] if len(called.out) else [])
        self._bury(change, called, batch)
        if called.failed is not None:
            change.events.append(self.held.failed(self.step, next_, called.failed))
            self.ended = Ended.FAILED
        elif called.stuck:
            change.events.append(self.held.event(Happened.STUCK, self.step, offset=next_))
            self.ended = Ended.STUCK
        elif hooks.is_spent:
            change.events.append(self.held.event(Happened.SPENT, self.step))
            self.ended = Ended.SPENT
        if not is_whole:
            self._unmade(change, called, batch)
        return change

    def _count(self, called: Called) -> None:
        tally, step = self.held.tally, self.step
        tally.add(tally.calls, step, called.calls)
        tally.add(tally.errors, step, called.errors)
        tally.add(tally.skipped, step, len(called.left_out))
        tally.add(tally.in_function, step, called.seconds)
        tally.add(tally.rows_in, step, called.done)
        tally.add(tally.rows_out, step, len(called.out))
        self.totals = self.totals.plus(errors=called.errors, skipped=len(called.left_out))

    def _bury(self, change: Change, called: Called, batch: Range) -> None:
        """Rows that were left out as dead letters, if the step keeps these."""
        if self.caller.options.on_error != "dead_letter" or not called.left_out:
            return
        change.letters[self.step] = [
            self.held.letter(self.caller.step, batch.rows, f) for f in called.left_out
        ]
        self.totals = self.totals.plus(dead_letters=len(called.left_out))
        self.held.tally.add(self.held.tally.dead_letters, self.step, len(called.left_out))

    def _unmade(self, change: Change, called: Called, batch: Range) -> None:
        """Nothing of the intent is in doubt: say so, and give back calls that were not made."""
        planned = self._calls_of(len(batch.rows))
        unmade = max(0, planned - (called.calls - self.retries))
        self.totals = self.totals.plus(calls=-unmade, in_doubt=called.wasted)
        budget = self.publisher.budget
        if unmade and budget is not None and budget.last is not None:
            change.taken.append(budgets.give_back(budget.last, unmade, now_us()))
        change.records.append(self._record(Kind.SETTLED, change.next, batch.next, 0, self.totals))
        self.recorded = self.totals
        if self.ended is Ended.OVER:
            self.held.is_over = True

    def _settle(self, change: Change) -> None:
        """Publish the last of the turn; totals that no intent will carry get a record."""
        if self.totals != self.recorded and not change.records:
            record = self._record(Kind.SETTLED, change.next, change.next, 0, self.totals)
            change.records.append(record)
        while True:
            try:
                self.publisher.publish(change, "settle")
            except BudgetMoved:
                budget = self.publisher.budget
                assert budget is not None
                budget.refresh()
                assert budget.last is not None, "what is given back was taken before"
                back = -change.taken[-1].calls
                change.taken = [budgets.give_back(budget.last, back, now_us())]
            else:
                return

    def record_retry(self, batch: Range) -> float:
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
            doubted = self._calls_of(len(batch.rows))
            record = self._record(Kind.RETRY, self.publisher.at, batch.next, doubted, totals)
            change = Change(next=self.publisher.at, records=[record], taken=_listed(taken))
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
    batch: Range
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


def _listed(taken: Taken | None) -> list[Taken]:
    return [] if taken is None else [taken]
