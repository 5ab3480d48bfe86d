"""Hints that are not met yet, as flat arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from millrace.reads.model.number_tables import Table
from millrace.reads.model.tags import Clocks, Ints


@dataclass(frozen=True, slots=True)
class _Waits(Table):
    """Pairs of tag and producer that wait for other pairs, by their frontier numbers."""

    TYPES: ClassVar[dict[str, Any]] = {"clock": np.uint64}

    cohort: Ints
    """The number of a cohort and a producer."""
    clock: Clocks
    source: Ints
    target: Ints
    since_ms: Ints


class UnmetHints:
    """Which pair waits for which."""

    def __init__(self) -> None:
        self._parts: list[_Waits] = []
        """As they came; joined when they are looked at."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, *, cohort: Ints, clock: Clocks, source: Ints, target: Ints, now_ms: int) -> None:
        """Begin to wait; `cohort` is the number of a cohort and a producer."""
        since = np.full(len(clock), now_ms, np.int64)
        self._parts.append(_Waits(cohort, clock, source, target, since))

    def settle(self, committed: Clocks, shown: Clocks) -> None:
        """Drop hints that are met, or whose own source shows that clock already."""
        waits = self._joined()
        if len(waits):
            met = committed[waits.target] >= waits.clock
            moot = shown[waits.source] >= waits.clock
            self._keep(~(met | moot))

    def drop_targets(self, pairs: Ints) -> None:
        """Drop the hints that wait for these pairs."""
        self._keep(~np.isin(self._joined().target, pairs))

    def drop_sources(self, pairs: Ints) -> None:
        """Drop the hints that these pairs named."""
        self._keep(~np.isin(self._joined().source, pairs))

    def bounds(self, count: int, without: np.uint64) -> Clocks:
        """The lowest clock that waits, of each cohort and producer."""
        waits = self._joined()
        lowest = np.full(count, without, np.uint64)
        np.minimum.at(lowest, waits.cohort, waits.clock)
        return lowest

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Source, target, clock and begin of the wait, oldest first."""
        waits = self._joined()
        order = np.argsort(waits.since_ms, kind="stable")
        columns = (waits.source, waits.target, waits.clock, waits.since_ms)
        return list(zip(*(column[order].tolist() for column in columns), strict=True))

    def _joined(self) -> _Waits:
        self._parts = [_Waits.concat(self._parts)]
        return self._parts[0]

    def _keep(self, which: npt.NDArray[np.bool_]) -> None:
        if not which.all():
            self._parts = [self._joined().take(which)]
