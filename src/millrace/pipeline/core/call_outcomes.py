"""Outcomes of calls to a step's function, and what a dead process left of its calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.pipeline.core.hop_rows import HopRows, Offsets
from millrace.pipeline.paid.spend import NO_SPEND, CallSpend

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row whose calls raised, or a batch of them."""

    place: int
    """The index of the row in its batch."""
    error: str
    traceback: str
    attempts: int = 1
    kind: str = ""
    """The class of the error."""
    is_final: bool = False
    """Whether no further attempt can help."""
    ends_step: bool = False
    """Whether no call of the step can succeed: it ends, whatever `on_error` says."""
    answer: str | None = None
    """The answer that was paid for and cannot be used."""


CallResult = bytes | Failure
"""The outcome of one call: rows as an Arrow IPC message, or the reason why there are none."""


def ended_process(index: int, attempts: int) -> Failure:
    """The failure of calls that ended their process."""
    times = "once" if attempts == 1 else f"{attempts} times"
    return Failure(
        place=index,
        error=f"the process of the worker ended in the call for this row, {times}: it called "
        "os._exit, crashed, had no memory left or was killed",
        traceback="",
        attempts=attempts,
        kind="ProcessEnded",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """The outcome of one call of an expensive step, in the order in which calls end."""

    first: int
    """The offset of the first row of the call."""
    attempt: int
    at_us: int
    """When the call ended."""
    seconds: float
    made: pa.RecordBatch | None = None
    """The rows that the function returned, if there are some."""
    failure: Failure | None = None
    refused_s: float | None = None
    """Set if the provider was busy: the seconds to wait, 0 if it did not say how many."""
    noted: CallSpend = NO_SPEND
    is_stuck: bool = False
    """Whether so many calls never returned that this process makes no more."""
    chance: float = 1.0
    """A number from 0 to 1, by chance: calls that failed together are not made again together."""


# Calls of cheap steps: a batch of rows at a time.
@dataclass(frozen=True, slots=True)
class KnownCalls:
    """What is known about the rows of a batch before the calls, by the index of the row."""

    attempts: Mapping[int, int] = field(default_factory=dict)
    """Calls that ended their process. Those for a whole batch are at index 0."""


NO_PAST: Final = KnownCalls()


@dataclass(slots=True, kw_only=True)
class BatchOutcome:
    """The outcome of the calls for one batch."""

    done: int
    """The number of settled rows, counted from the first row on."""
    out: HopRows
    """The rows that the function made of them."""
    left_out: list[Failure] = field(default_factory=list)
    """Settled rows that raised and are left out."""
    failed: Failure | None = None
    """Why the step gives up, at the first row that is not settled."""
    calls: int = 0
    """Calls made, retries included."""
    errors: int = 0
    stuck: bool = False
    """Whether so many calls never returned that this process makes no more."""
    seconds: float = 0.0
    """Time spent in the function."""


@dataclass(frozen=True, slots=True)
class CallMark:
    """A call that was under way: the range of its rows' indexes, or of their offsets if paid."""

    begin: int
    end: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutcome:
    """One outcome of a paid call in the call file of a dead process."""

    number: int
    """How many outcomes of its turn were before it."""
    begin: int
    end: int
    """The offsets of its rows: of the first one, and behind the last one."""
    attempt: int
    result: CallResult | None
    """None if the provider was busy."""
    seconds: float
    noted: CallSpend
    at_us: int


@dataclass(slots=True, kw_only=True)
class LeftCalls:
    """The content of the call file of a dead process."""

    header: Mapping[str, Any]
    step: str = ""
    offsets: Offsets | None = None
    """The offsets that the indexes of a cheap step's marks refer to."""
    marks: list[CallMark] = field(default_factory=list)
    outcomes: list[LeftOutcome] = field(default_factory=list)

    def joined(self, other: LeftCalls) -> LeftCalls:
        """This file and another one of the same turn as one."""
        return LeftCalls(
            header=self.header,
            step=self.step or other.step,
            marks=[*self.marks, *other.marks],
            outcomes=sorted([*self.outcomes, *other.outcomes], key=lambda o: o.number),
        )
