"""Outcomes of calls to a step's function, and what a dead process left of its calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from millrace.pipeline.core.hop_rows import HopRows, Offsets

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row whose calls raised, or a batch of them."""

    place: int
    """The index of the row in its batch."""
    error: str
    traceback: str
    attempts: int = 1


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
    )


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """What is known about the rows of a batch before the calls, by the index of the row."""

    attempts: Mapping[int, int] = field(default_factory=dict)
    """Calls that ended their process. Those for a whole batch are at index 0."""
    settled: Mapping[int, list[Row] | Failure] = field(default_factory=dict)
    """Results that a dead process left: these rows are not called for again."""


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
    wasted: int = 0
    """Calls whose results are dropped, since an earlier row failed."""
    stuck: bool = False
    """Whether so many calls never returned that this process makes no more."""
    seconds: float = 0.0
    """Time spent in the function."""


@dataclass(frozen=True, slots=True)
class CallMark:
    """A call that was under way, with the range of its rows' indexes."""

    begin: int
    end: int
    attempt: int


@dataclass(slots=True, kw_only=True)
class LeftCalls:
    """The content of the call file of a dead process."""

    header: Mapping[str, Any]
    step: str = ""
    offsets: Offsets = field(default_factory=lambda: np.empty(0, np.int64))
    marks: list[CallMark] = field(default_factory=list)
    settled: dict[tuple[int, int], CallResult] = field(default_factory=dict)
    """Results by the range of their rows' indexes."""
    known: dict[int, CallResult] = field(default_factory=dict)
    """Results of rows behind the batch, by offset."""
    raised: list[int] = field(default_factory=list)
    """Indexes of calls that raised and were to be made again."""
    batches: tuple[int, ...] = (0,)
    """The index of the first row of each batch."""

    def joined(self, behind: LeftCalls) -> LeftCalls:
        """This file, and the one of the batch behind it, as one."""
        by = len(self.offsets)
        return LeftCalls(
            header=self.header,
            step=self.step,
            offsets=np.concatenate([self.offsets, behind.offsets]),
            marks=[
                *self.marks,
                *(CallMark(m.begin + by, m.end + by, m.attempt) for m in behind.marks),
            ],
            settled=self.settled
            | {(b + by, e + by): _moved(result, by) for (b, e), result in behind.settled.items()},
            known=self.known | behind.known,
            raised=[*self.raised, *(index + by for index in behind.raised)],
            batches=(*self.batches, *(index + by for index in behind.batches)),
        )


def _moved(result: CallResult, by: int) -> CallResult:
    return replace(result, place=result.place + by) if isinstance(result, Failure) else result
