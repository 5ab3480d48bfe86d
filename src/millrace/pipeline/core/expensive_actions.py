"""The actions that the machine of an expensive step asks of its worker. Pure.

Actions of one answer are carried out in their order. An action that names an `on_*` method is the
last of its answer: that method of the machine is called with the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.pipeline.core.call_budget import BudgetShare
from millrace.pipeline.core.call_outcomes import CallResult, KnownCalls
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.call_records import CallRecord, Totals
from millrace.pipeline.core.hop_rows import HopRows, Offsets
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish


@dataclass(frozen=True, slots=True)
class ReadLeftCalls:
    """Read the rows of a dead worker's record, and its call file.

    Then `on_left_calls`, or `on_left_unread` if the rows cannot be read now.
    """

    record: CallRecord


@dataclass(frozen=True, slots=True)
class StoreLarge:
    """Store the large values of recovered rows in files; then `on_large_stored`."""

    rows: tuple[HopRows, ...]


@dataclass(frozen=True, slots=True)
class ForgetCallFiles:
    """Remove the call files of dead workers: their content is published."""


@dataclass(frozen=True, slots=True)
class PutBackRows:
    """Call for these rows once more, before any other."""

    range: CallRange


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read the next batch; then `on_batch`, `on_turn_over` or `on_read_error`.

    `on_front_due` comes first if functions in front of the step are to be called for more rows.
    """

    until_stopped: bool
    """Only a stop or a lost lease ends the turn now: results of a dead worker still wait."""


@dataclass(frozen=True, slots=True)
class OpenCallFile:
    """Make the call file of a batch, before the intent that it belongs to."""

    first: int
    offsets: Offsets
    known: Mapping[int, CallResult] = field(default_factory=dict)
    """Results of a dead worker that still wait, by offset."""


@dataclass(frozen=True, slots=True)
class DiscardNewCallFile:
    """Remove the call file that was just made: its intent was not published."""


@dataclass(frozen=True, slots=True)
class SwitchCallFile:
    """The new call file is in use; the results of those before it are published."""


@dataclass(frozen=True, slots=True)
class NextCallFile:
    """The new call file is in use; the results of the one before it wait to be published."""


@dataclass(frozen=True, slots=True)
class RemoveCalledFiles:
    """The results of the call files before the one in use are published."""


@dataclass(frozen=True, slots=True)
class RemoveCallFile:
    """The results of the call file in use are published, and of those before it."""


@dataclass(frozen=True, slots=True)
class PublishChange:
    """Publish a change; then `on_published` or `on_budget_moved`."""

    change: UnitPublish
    point: str
    """Names the fault points around the transaction."""


@dataclass(frozen=True, slots=True)
class MakeCalls:
    """Call the function for these rows; then `on_called`."""

    rows: HopRows
    past: KnownCalls
    in_doubt: bool
    """Whether a dead process may have made some of these calls."""


@dataclass(frozen=True, slots=True)
class WaitForRate:
    """The retry is recorded; make it after this time."""

    wait_us: int


@dataclass(frozen=True, slots=True)
class StopCalls:
    """Make no more calls in this batch: the budget is used up."""


@dataclass(frozen=True, slots=True)
class CountRows:
    """Add to the worker's counts of the step."""

    skipped: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The turn is over."""

    end: TurnEnd


CallFileAction = (
    ForgetCallFiles
    | OpenCallFile
    | DiscardNewCallFile
    | SwitchCallFile
    | NextCallFile
    | RemoveCalledFiles
    | RemoveCallFile
)
ExpensiveAction = (
    CallFileAction
    | ReadLeftCalls
    | StoreLarge
    | PutBackRows
    | ReadBatch
    | PublishChange
    | MakeCalls
    | WaitForRate
    | StopCalls
    | CountRows
    | EndTurn
)


# What the machine waits for between an action and its answer.
@dataclass(frozen=True, slots=True, kw_only=True)
class SendingIntent:
    """An intent that is being published, with the results before it."""

    before: UnitPublish
    batch: CallRange
    chosen: CallRange
    """The part of the batch that the budget allows."""
    share: BudgetShare | None
    totals: Totals


@dataclass(frozen=True, slots=True)
class SendingRetry:
    """A retry that is being recorded."""

    share: BudgetShare | None
    totals: Totals


@dataclass(frozen=True, slots=True)
class SendingResults:
    """Results that are being published, and the actions that follow."""

    change: UnitPublish
    point: str
    then: tuple[ExpensiveAction, ...]


@dataclass(frozen=True, slots=True)
class SendingMeanwhile:
    """Results that are being published while the calls of the next batch are under way."""

    change: UnitPublish


Sending = SendingIntent | SendingRetry | SendingResults | SendingMeanwhile


@dataclass(frozen=True, slots=True)
class BatchInWork:
    """The batch whose calls are being made."""

    batch: CallRange
    calls: int
    is_cut: bool
    """Whether the budget allowed only a part: the rest is read again in the next turn."""
