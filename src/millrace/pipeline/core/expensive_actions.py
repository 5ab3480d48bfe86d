"""The actions that the machine of an expensive step asks of its worker. Pure.

Actions of one answer are carried out in their order. An action that names an `on_*` method is the
last of its answer: that method of the machine is called with the outcome. Where an answer names
none, `on_idle` is called when the outcomes of calls that have come in are given to the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_records import CallRecord


@dataclass(frozen=True, slots=True)
class ReadLeftCalls:
    """Read the rows of the last record, and the call files that its worker left.

    Then `on_left_calls`, or `on_left_unread` if the rows cannot be read now.
    """

    record: CallRecord


@dataclass(frozen=True, slots=True)
class KeepResults:
    """Put results into this turn's call file: those of a dead worker that wait for earlier rows."""

    calls: tuple[SlidingCall, ...]


@dataclass(frozen=True, slots=True)
class ForgetCallFiles:
    """Remove the call files of dead workers: their content is published, or in this turn's file."""


@dataclass(frozen=True, slots=True)
class ReadMoreRows:
    """Read more rows; then `on_rows`, `on_turn_over` or `on_read_error`."""


@dataclass(frozen=True, slots=True)
class PublishChange:
    """Publish a change; then `on_published` or `on_budget_moved`."""

    change: UnitPublish
    point: str
    """Names the fault points around the transaction."""


@dataclass(frozen=True, slots=True)
class StartCalls:
    """These calls are recorded: make them, in their order, as soon as slots are free."""

    calls: tuple[SlidingCall, ...]


@dataclass(frozen=True, slots=True)
class GoOn:
    """A call that failed is settled: if one call is made at a time, the next may be made."""


@dataclass(frozen=True, slots=True)
class WithdrawCalls:
    """Begin no more calls; then `on_withdrawn` with those that were not begun."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an outcome of a call, and no longer than until this time, if there is one."""

    until_us: int | None


@dataclass(frozen=True, slots=True)
class CountRows:
    """Add to the worker's counts of the step."""

    skipped: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The turn is over."""

    end: TurnEnd
    keeps_file: bool = False
    """Whether results wait for earlier rows: the next worker takes them from the call file."""


ExpensiveAction = (
    ReadLeftCalls
    | KeepResults
    | ForgetCallFiles
    | ReadMoreRows
    | PublishChange
    | StartCalls
    | GoOn
    | WithdrawCalls
    | Wait
    | CountRows
    | EndTurn
)
Actions = list[ExpensiveAction]


# What the machine waits for between an action and its answer.
@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A change that is being published."""

    change: UnitPublish
    point: str
    results: tuple[SlidingCall, ...]
    """Calls whose results it has."""
    recorded: tuple[SlidingCall, ...] = ()
    """Calls that it records."""
    then: Actions
    """What follows."""
