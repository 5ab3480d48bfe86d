"""The operators of steps with state, as values: what the user asked for. Pure.

`identity()` has everything that decides the state and the rows that come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Emit = Literal["changes", "upserts", "retractions"]
"""Rows that come out: new rows with the kind of change in front, or without; or each old row as
`delete`, then the new one as `insert`: what a step behind needs to take its results back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTotals:
    """Aggregates of all rows of a key."""

    aggregates: tuple[tuple[str, str], ...]
    """Names and Spark SQL."""
    emit: Emit

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "aggregate"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        listed = ", ".join(f"{name} = {text}" for name, text in self.aggregates)
        return {"aggregates": listed, "emit": self.emit}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRow:
    """The last row of each key."""

    emit: Emit
    by: str | None = None
    """The column whose largest value is the last one; None: the last to come."""

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "latest"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        return {"by": self.by or "", "emit": self.emit}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRow:
    """The first row of each key, or of each stretch of time."""

    within_us: int | None = None
    time: str | None = None
    """The column of event time; with `within_us`."""

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "dedupe"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        return {"within": _span(self.within_us), "time": self.time or ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFunction:
    """A function of the user over rows and the states of their keys."""

    version: str | None = None

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "stateful"

    def identity(self) -> Mapping[str, str]:
        """What decides its results, beside the function."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindows:
    """Aggregates of the rows of a key in windows of event time."""

    totals: KeyTotals
    time: str
    size_us: int
    """The length of windows; of sessions the gap that ends them."""
    slide_us: int | None
    """How far apart windows begin; None: they are sessions."""
    late_us: int | None
    """How late rows may come; None: windows stay open for ever."""
    idle_us: int | None = None
    """After how long a journal without new rows holds up no window; None: it always does."""
    at_close: bool
    """Whether a window comes out once, when it closes."""

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "window"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        emit = {"emit": "close"} if self.at_close else {}
        span = {"session": _span(self.size_us)}
        if self.slide_us is not None:
            span = {"size": _span(self.size_us), "slide": _span(self.slide_us)}
        late = {"late": _span(self.late_us), **_idle(self.idle_us)}
        return {**self.totals.identity(), "time": self.time, **span, **late, **emit}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPairs:
    """Pairs of rows of two sides with equal keys, whose times are near each other."""

    right_keys: tuple[str, ...]
    times: tuple[str | None, str | None]
    within_us: int | None
    """How far the times of a pair may be apart; None: times do not matter."""
    late_us: int | None
    """How late rows may come; None: all rows are kept."""
    idle_us: int | None = None
    """After how long a journal without new rows keeps no rows; None: it always does."""
    changes: tuple[bool, bool] = (False, False)
    """Whether the rows of each side are changes."""

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "join"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        spans = {"within": _span(self.within_us), "late": _span(self.late_us)}
        times = ", ".join(time or "" for time in self.times)
        spans |= _idle(self.idle_us)
        return {"right keys": ", ".join(self.right_keys), "times": times, **spans}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLookup:
    """Rows of one side, each with the row that a table, the other side, has for its key."""

    right_keys: tuple[str, ...]
    has_changes: bool = False
    """Whether the rows of the table are changes."""

    @property
    def method(self) -> str:
        """The user's word for it."""
        return "lookup"

    def identity(self) -> Mapping[str, str]:
        """What decides its results."""
        return {"right keys": ", ".join(self.right_keys)}


def _span(given_us: int | None) -> str:
    """A length of time in an identity: none is not the same as nothing."""
    return "" if given_us is None else f"{given_us} us"


def _idle(given_us: int | None) -> dict[str, str]:
    return {} if given_us is None else {"idle": _span(given_us)}


StateOperator = KeyTotals | LatestRow | FirstRow | KeyFunction | TimeWindows | RowPairs | RowLookup
TABLE_SIDE: Final = 1
"""The side of a lookup that is its table; the other one has the rows that look up."""
TIMED = (TimeWindows, RowPairs)
"""Operators that go by event time."""
