"""The part of its step's budget that a unit with batches holds: taken before a batch is made."""

from __future__ import annotations

from dataclasses import replace

from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_budget import Wallet
from millrace.pipeline.paid.call_records import CallRecord, CallRecordKind, Held, Totals
from millrace.pipeline.paid.limits_and_budget import Budget
from millrace.pipeline.worker.publisher import BudgetMoved, Publisher
from millrace.pipeline.worker.turn import now_us


class BatchWallet:
    """Reserves what a batch may cost, and settles it when its rows are published."""

    def __init__(
        self, publisher: Publisher, budget: Budget | None, held: Held, *, epoch: int
    ) -> None:
        """`held`: by the unit's last record; it stays in records also without a budget."""
        self._publisher, self._epoch, self._held = publisher, epoch, held
        self._wallet = None if budget is None else Wallet(budget, held, publisher.last_share)

    def room(self, totals: Totals, guess: Held) -> int | None:
        """How many more questions the budget allows; None if there is no limit for now."""
        if self._wallet is None:
            return None
        self._wallet.guess = guess
        return self._wallet.allows(totals, 0)

    def publish(
        self,
        change: UnitPublish,
        totals: Totals,
        owed: Totals,
        questions: int,
        *,
        room_min: int = 0,
    ) -> bool:
        """Publish a change with the unit's record, and the change of what it holds.

        Returns whether it is published: not if the budget has no room for so many questions.

        Args:
            change: what else is published.
            totals: of the calls whose outcomes are published with it, and before.
            owed: the same with what other answers that came have cost.
            questions: how many are under way, or about to be asked.
            room_min: how many questions the budget has to have room for.
        """
        point = "publish" if change.next != self._publisher.at else "settle"
        while True:
            share = None
            if self._wallet is not None:
                room = self._wallet.allows(owed, 0)
                if room is not None and room < room_min:
                    return False
                share = self._wallet.share(owed.plus(calls=questions), questions, now_us())
            held = self._held if share is None else self._held.plus(share.change)
            whole = replace(
                change,
                records=(self._record(change.next, totals, held),),
                budget=() if share is None else (share,),
            )
            try:
                self._publisher.publish(whole, point)
            except BudgetMoved:
                self._publisher.read_budget()
                assert self._wallet is not None, "only a step with a budget has shares"
                self._wallet.last = self._publisher.last_share
                continue
            self._held = held
            if self._wallet is not None:
                self._wallet.on_published(share, self._publisher.last_share)
            return True

    def _record(self, next_: int, totals: Totals, held: Held) -> CallRecord:
        return CallRecord(
            at_us=now_us(),
            epoch=self._epoch,
            kind=CallRecordKind.SETTLED,
            first=next_,
            next=next_,
            calls=0,
            totals=totals,
            held=held,
        )
