"""Carries out the actions of the publish machine: sends transactions and reads journals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import assert_never

from millrace.config import Config
from millrace.errors import Conflict, JournalUnknown, LeaseHeld, LeaseLost, Retriable
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.core import hops
from millrace.pipeline.core.publish_machine import (
    PublishAction,
    PublishMachine,
    ReadCallRecords,
    ReadCommitted,
    ReadTails,
    ReportBudgetMoved,
    ReportLeaseLost,
    ReportPublished,
    SendAgain,
    SendTransaction,
    SkipPublish,
)
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.paid import call_budget, call_records
from millrace.pipeline.paid.call_budget import BudgetShare, BudgetTail
from millrace.pipeline.sinks.sink_port import Prepared


class BudgetMoved(Exception):
    """Another worker took from the budget first; read it again."""


class Publisher:
    """Publishes for one unit, from the moment its lease was taken."""

    def __init__(
        self, broker: Broker, config: Config, lease: Lease, machine: PublishMachine
    ) -> None:
        self._broker, self._config, self._lease = broker, config, lease
        self.machine = machine
        self.seconds = 0.0
        """Time spent in publishing."""
        self.last_s = 0.0
        """How long the last transaction took."""

    @property
    def at(self) -> int:
        """The unit's committed offset."""
        return self.machine.at

    @property
    def last_share(self) -> BudgetShare | None:
        """The last share that any worker took from the step's budget, as last read."""
        return None if self.machine.budget is None else self.machine.budget.last

    def read_budget(self) -> None:
        """Read the shares that other workers took."""
        self.machine.on_budget(
            patiently(lambda: self._budget_tail(self.machine.budget_journal), self._config)
        )

    def publish(
        self, change: UnitPublish, point: str = "publish", *, prepared: Prepared | None = None
    ) -> None:
        """Publish a change, once. `LeaseLost` if the unit is no longer this worker's."""
        has_files = prepared is not None
        if isinstance(self.machine.on_publish(change, has_files=has_files), SkipPublish):
            return
        begun = time.perf_counter()
        fault(f"worker.{point}.before")
        try:
            patiently(lambda: self._send(change, prepared), self._config)
        finally:
            self.last_s = time.perf_counter() - begun
            self.seconds += self.last_s
        fault(f"worker.{point}.after")
        if prepared is not None:
            prepared.finish()
            fault("worker.finish.after")

    def _send(self, change: UnitPublish, prepared: Prepared | None) -> None:
        """Send the change until its outcome is known. A lost answer is raised, for a retry."""
        error: Retriable | Conflict | None = None
        action = self.machine.on_publish(change, has_files=prepared is not None)
        while True:
            match action:
                case SendTransaction():
                    try:
                        action = self.machine.on_answer(self._transaction(action, prepared))
                    except LeaseHeld:
                        raise
                    except Retriable as lost:
                        error, action = lost, self.machine.on_answer_lost()
                    except Conflict as conflict:
                        error, action = conflict, self.machine.on_conflict()
                case ReadCommitted() | ReadCallRecords() | ReadTails():
                    action = self._look(action)
                case SendAgain():
                    assert error is not None
                    raise error
                case ReportBudgetMoved():
                    raise BudgetMoved from error
                case ReportLeaseLost():
                    raise LeaseLost(
                        f"unit {self.machine.journal!r} of {self.machine.hop.name!r} was worked "
                        "on by another\n"
                        f"  {error}\n"
                        "  to fix: nothing; the other worker goes on with it"
                    ) from error
                case ReportPublished() | SkipPublish():
                    return
                case _:
                    assert_never(action)

    def _transaction(self, action: SendTransaction, prepared: Prepared | None) -> dict[str, int]:
        """Send a transaction; the new ends of its journals."""
        commit = action.commit
        with self._broker.transaction(self._lease) as t:
            for append in action.appends:
                t.append(append.journal, append.rows, expected=append.expected)
            if prepared is not None:
                prepared.add_to(t)
            if commit is not None:
                t.commit(commit.group, commit.journal, commit.offset, expected=commit.expected)
        assert t.result is not None
        return {name: int(done.next_offset) for name, done in t.result.appended.items()}

    def _look(self, action: ReadCommitted | ReadCallRecords | ReadTails) -> PublishAction:
        broker = self._broker
        match action:
            case ReadCommitted(group, journal):
                return self.machine.on_committed(broker.committed(group, journal))
            case ReadCallRecords(journal, offset):
                end = int(broker.end_offset(journal, isolation="raw"))
                rows = broker.read(journal, offset).rows()
                return self.machine.on_calls(end, call_records.from_rows(rows))
            case ReadTails(calls, budget):
                return patiently(lambda: self._tails(calls, budget), self._config)

    def _tails(self, calls: str | None, budget: str | None) -> PublishAction:
        calls_end = None
        if calls is not None:
            calls_end = int(self._broker.end_offset(calls, isolation="raw"))
        return self.machine.on_tails(
            calls_end, None if budget is None else self._budget_tail(budget)
        )

    def _budget_tail(self, journal: str) -> BudgetTail:
        row, end = last_row(self._broker, journal)
        if row is None:
            # A job of a version that counted no dollars: its calls are spent.
            with contextlib.suppress(JournalUnknown):
                hop = self.machine.hop
                row, _ = last_row(self._broker, hops.budget_journal_before(hop.job, hop.name))
        return BudgetTail(None if row is None else call_budget.from_row(row), end)


@contextlib.contextmanager
def abandoned_on_error(prepared: Prepared | None) -> Iterator[None]:
    """Remove the rows that a sink prepared, if their transaction is not made."""
    try:
        yield
    except BaseException:
        if prepared is not None:
            prepared.abandon()
        raise
