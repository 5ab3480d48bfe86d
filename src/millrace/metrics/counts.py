"""Counts of this process: what happened so often, took so long, or is so much now.

Counting is always on and needs no package. It takes a lock and an entry of a dictionary, so it
belongs where something is done for many rows at once, and not on a path per row.

Invariant: a count is never lost between threads, and a forked process begins with none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from millrace.metrics.metric import Metric, MetricKind, MetricSample, bucket_of

PROCESS: Final = "process"
"""The last label of all metrics that are counted in processes: the host and number of the one."""


class _Counts:
    """What all kinds of counts have."""

    def __init__(self, metric: Metric) -> None:
        self.metric = replace(metric, labels=(*metric.labels, PROCESS))
        self._lock = threading.Lock()
        _all.append(self)

    def samples(self, process: str) -> Iterator[MetricSample]:
        """The values as they are now."""
        raise NotImplementedError

    def forget(self) -> None:
        """Begin anew, in a forked process: another thread may have had the lock."""
        self._lock = threading.Lock()


class MetricTally(_Counts):
    """How much so far, or how much now: a counter or a gauge."""

    def __init__(self, metric: Metric) -> None:
        assert metric.kind in (MetricKind.COUNTER, MetricKind.GAUGE), metric
        super().__init__(metric)
        self._values: dict[tuple[str, ...], float] = {}
        self._running: dict[object, tuple[tuple[str, ...], float]] = {}

    def add(self, amount: float = 1, *labels: str) -> None:
        """So much more."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount

    @contextmanager
    def one_more(self, *labels: str) -> Iterator[None]:
        """One more within the block: of a gauge."""
        self.add(1, *labels)
        try:
            yield
        finally:
            self.add(-1, *labels)

    @contextmanager
    def seconds(self, *labels: str) -> Iterator[None]:
        """Add the seconds of the block; while it goes on, those so far."""
        block, begun = object(), time.monotonic()
        with self._lock:
            self._running[block] = (labels, begun)
        try:
            yield
        finally:
            with self._lock:
                del self._running[block]
                spent = time.monotonic() - begun
                self._values[labels] = self._values.get(labels, 0) + spent

    def samples(self, process: str) -> Iterator[MetricSample]:
        """See `_Counts.samples`."""
        with self._lock:
            values, now = dict(self._values), time.monotonic()
            for labels, begun in self._running.values():
                values[labels] = values.get(labels, 0) + now - begun
        for labels, value in values.items():
            yield MetricSample(self.metric.name, (*labels, process), value)

    def forget(self) -> None:
        """See `_Counts.forget`."""
        super().forget()
        self._values, self._running = {}, {}


class MetricTimes(_Counts):
    """How long each of many took: a histogram or a summary."""

    def __init__(self, metric: Metric) -> None:
        assert metric.kind in (MetricKind.HISTOGRAM, MetricKind.SUMMARY), metric
        super().__init__(metric)
        self._sums: dict[tuple[str, ...], tuple[list[int], float]] = {}

    def note(self, value: float, *labels: str) -> None:
        """One more, which took so long."""
        bucket = bucket_of(self.metric.bounds, value)
        with self._lock:
            counts, total = self._sums.get(labels) or ([0] * (len(self.metric.bounds) + 1), 0.0)
            counts[bucket] += 1
            self._sums[labels] = (counts, total + value)

    @contextmanager
    def timed(self, *labels: str) -> Iterator[None]:
        """Note how long the block takes, also if it raises."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.note(time.monotonic() - begun, *labels)

    def samples(self, process: str) -> Iterator[MetricSample]:
        """See `_Counts.samples`."""
        with self._lock:
            values = [
                (labels, total, tuple(counts)) for labels, (counts, total) in self._sums.items()
            ]
        for labels, total, counts in values:
            yield MetricSample(self.metric.name, (*labels, process), total, counts)

    def forget(self) -> None:
        """See `_Counts.forget`."""
        super().forget()
        self._sums = {}


_all: list[_Counts] = []


def counted(process: str) -> list[MetricSample]:
    """All counts of this process, which has this name."""
    return [sample for counts in _all for sample in counts.samples(process)]


def _forget() -> None:
    for counts in _all:
        counts.forget()


os.register_at_fork(after_in_child=_forget)
