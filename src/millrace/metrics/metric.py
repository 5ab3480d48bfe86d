"""What a metric is: its name, unit, labels and meaning; and a value of one at some moment.

Pure. Names follow the conventions of Prometheus: base units, `_total` for what only grows.
The documentation is made from these values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "millrace_"
UNITS: Final = ("bytes", "seconds", "dollars", "ratio")
"""The units that a name may end with, before `_total`; all else is a plain number of things."""


class MetricKind(StrEnum):
    """How values of a metric come about, in the words of Prometheus."""

    COUNTER = "counter"
    """Only grows; begins at 0 with each process, or is kept in the workspace."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """How often a value was at most so large."""
    SUMMARY = "summary"
    """The sum of all values and their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bounds of its buckets."""

    @property
    def unit(self) -> str:
        """The unit, as its name has it; empty for a number of things."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of a metric for some values of its labels, in the order of the metric's labels."""

    metric: str
    labels: tuple[str, ...]
    value: float
    """Of a histogram and a summary: the sum of all values."""
    counts: tuple[int, ...] = ()
    """Of a histogram: how many values each bucket has, and those above; of a summary: how many."""


def bucket_of(bounds: Sequence[float], value: float) -> int:
    """The number of the bucket for a value: the first whose bound is not below it."""
    return bisect_left(bounds, value)


def counter(name: str, about: str, *labels: str) -> Metric:
    """A metric that only grows."""
    return Metric(name=PREFIX + name, kind=MetricKind.COUNTER, about=about, labels=labels)


def gauge(name: str, about: str, *labels: str) -> Metric:
    """A metric that goes up and down."""
    return Metric(name=PREFIX + name, kind=MetricKind.GAUGE, about=about, labels=labels)


def summary(name: str, about: str, *labels: str) -> Metric:
    """The sum and the number of values."""
    return Metric(name=PREFIX + name, kind=MetricKind.SUMMARY, about=about, labels=labels)


def histogram(name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    """How often a value was at most so large."""
    return Metric(
        name=PREFIX + name, kind=MetricKind.HISTOGRAM, about=about, labels=labels, bounds=bounds
    )
