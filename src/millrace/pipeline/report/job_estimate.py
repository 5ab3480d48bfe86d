"""What the rest of a job's paid calls will cost and how long they take, by a sample of them.

The rows of the sample are done. Costs are of whole rows: with tries that failed, and repairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millrace.pipeline.paid.spend import NANO_USD
from millrace.pipeline.report.job_report import JobReport, StepReport, dollars

SAMPLE_CHARGES_MAX: Final = 100_000
"""So many attempts are looked at, the newest ones."""
_DEVIATIONS: Final = 1.96
"""Of 20 estimates 19 hold what they estimate."""


@dataclass(frozen=True, slots=True)
class Range:
    """An amount, and between what it is most likely."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class StepSlots:
    """How many calls of a step are made at once."""

    workers: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """The rest of one step."""

    name: str
    rows_sampled: int
    """Input rows that are done."""
    rows_left: int
    tokens: Range
    usd: Range
    seconds: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """The rest of a job. Prints as lines."""

    steps: tuple[StepEstimate, ...]
    report: JobReport = field(repr=False)
    """Of the run that made the sample."""

    def step(self, name: str) -> StepEstimate:
        """The estimate of one step."""
        return next(step for step in self.steps if step.name == name)

    def __str__(self) -> str:
        return "\n".join(_text(step) for step in self.steps) or "no step has paid calls"


def _text(step: StepEstimate) -> str:
    if not step.rows_sampled:
        return f"{step.name}: no row came to it in the sample"
    usd, tokens, seconds = step.usd, step.tokens, step.seconds
    return (
        f"{step.name}: {step.rows_left:,} rows left, after {step.rows_sampled:,}: "
        f"about ${dollars(usd.mean)} (${dollars(usd.low)} to ${dollars(usd.high)}), "
        f"{tokens.mean:,.0f} tokens ({tokens.low:,.0f} to {tokens.high:,.0f}), "
        f"{_duration(seconds.low)} to {_duration(seconds.high)}"
    )


def _duration(seconds: float) -> str:
    units = (("s", 60), ("min", 60), ("h", 24), ("days", math.inf))
    for unit, size in units:
        if seconds < 2 * size:
            return f"{seconds:,.0f} {unit}"
        seconds /= size
    raise AssertionError("the last unit holds all")


def estimate_of(
    report: JobReport, charges: Mapping[str, pa.Table], slots: Mapping[str, StepSlots]
) -> JobEstimate:
    """The estimate by the charges of each step, the newest of them if they are many."""
    return JobEstimate(
        steps=tuple(
            _of_step(report.step(name), charged, slots[name]) for name, charged in charges.items()
        ),
        report=report,
    )


def _of_step(step: StepReport, charged: pa.Table, slots: StepSlots) -> StepEstimate:
    calls = by_call(charged)
    count, done = len(calls["tokens"]), max(1, step.rows_in)
    # Some rows make no call, and a call may be for several.
    made = count if charged.num_rows < SAMPLE_CHARGES_MAX else step.calls or 0
    left = step.backlog * made / done
    each_s = [us / 1e6 / (slots.workers * slots.concurrency) for us in calls["latency_us"]]
    quick = _rest(each_s, left, 1.0)
    worked = step.seconds / max(1, step.rows_in - step.reused) / slots.workers
    slow = max(quick.high, step.backlog * worked)
    return StepEstimate(
        name=step.name,
        rows_sampled=step.rows_in,
        rows_left=step.backlog,
        tokens=_rest(calls["tokens"], left, 1.0),
        usd=_rest(calls["nano_usd"], left, 1 / NANO_USD),
        seconds=Range(quick.low, (quick.low + slow) / 2, slow),
    )


def by_call(charged: pa.Table) -> dict[str, list[float]]:
    """Tokens, dollars and time of each call, with all its attempts."""
    names = ("tokens_in", "tokens_cached", "tokens_out", "nano_usd", "latency_us")
    sums = charged.group_by(["journal", "offset"]).aggregate([(name, "sum") for name in names])
    found = {name: sums[f"{name}_sum"].to_pylist() for name in names}
    parts = zip(found["tokens_in"], found["tokens_cached"], found["tokens_out"], strict=True)
    return {
        "tokens": [float(sum(each)) for each in parts],
        "nano_usd": found["nano_usd"],
        "latency_us": found["latency_us"],
    }


def _rest(amounts: Sequence[float], left: float, unit: float) -> Range:
    """What so many more calls come to, if they are like these."""
    count = len(amounts)
    if not count or not left:
        return Range(0.0, 0.0, 0.0)
    mean = sum(amounts) / count
    variance = sum((each - mean) ** 2 for each in amounts) / max(1, count - 1)
    # The mean of the rest differs by chance, and so does that of the sample.
    deviation = math.sqrt(variance * (left + left**2 / count))
    whole, around = mean * left, _DEVIATIONS * deviation
    return Range(max(0.0, whole - around) * unit, whole * unit, (whole + around) * unit)
