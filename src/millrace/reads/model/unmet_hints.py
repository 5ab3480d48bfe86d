"""Hints that are not met yet, as flat arrays. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.reads.model.tags import Clocks, Ints


class UnmetHints:
    """Which pair waits for which: pairs of tag and producer, by their frontier numbers."""

    def __init__(self) -> None:
        self._cohort: Ints = np.empty(0, np.int64)
        self._clock: Clocks = np.empty(0, np.uint64)
        self._source: Ints = np.empty(0, np.int64)
        self._target: Ints = np.empty(0, np.int64)
        self._since_ms: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._clock)

    def add(self, *, cohort: Ints, clock: Clocks, source: Ints, target: Ints, now_ms: int) -> None:
        """Begin to wait; `cohort` is the number of a cohort and a producer."""
        self._cohort = np.concatenate([self._cohort, cohort])
        self._clock = np.concatenate([self._clock, clock])
        self._source = np.concatenate([self._source, source])
        self._target = np.concatenate([self._target, target])
        since = np.full(len(clock), now_ms, np.int64)
        self._since_ms = np.concatenate([self._since_ms, since])

    def settle(self, committed: Clocks, shown: Clocks) -> None:
        """Drop hints that are met, or whose own source shows that clock already."""
        if len(self):
            met = committed[self._target] >= self._clock
            moot = shown[self._source] >= self._clock
            self._keep(~(met | moot))

    def drop_targets(self, pairs: Ints) -> None:
        """Drop the hints that wait for these pairs."""
        self._keep(~np.isin(self._target, pairs))

    def drop_sources(self, pairs: Ints) -> None:
        """Drop the hints that these pairs named."""
        self._keep(~np.isin(self._source, pairs))

    def bounds(self, count: int, without: np.uint64) -> Clocks:
        """The lowest clock that waits, of each cohort and producer."""
        lowest = np.full(count, without, np.uint64)
        np.minimum.at(lowest, self._cohort, self._clock)
        return lowest

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Source, target, clock and begin of the wait, oldest first."""
        order = np.argsort(self._since_ms, kind="stable")
        columns = (self._source, self._target, self._clock, self._since_ms)
        return list(zip(*(column[order].tolist() for column in columns), strict=True))

    def _keep(self, which: npt.NDArray[np.bool_]) -> None:
        if not which.all():
            self._cohort, self._clock = self._cohort[which], self._clock[which]
            self._source, self._target = self._source[which], self._target[which]
            self._since_ms = self._since_ms[which]
