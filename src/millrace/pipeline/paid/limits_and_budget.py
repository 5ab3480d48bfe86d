"""Limits and budgets of the calls of a step, as the user gives them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from millrace.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the calls of a step may cost, over all workers and runs: `budget=` of a step.

    Before a call its cost is reserved, as calls before it cost on average. A job passes its budget
    by the calls that are under way at most, and ends as `spent`.

    Example:
        >>> mr.Budget(usd=25, calls=100_000)
        Budget(usd=25, calls=100000, tokens=None)
    """

    usd: float | None = None
    calls: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        _check("Budget", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How fast the calls of a step may come, over all workers: `limits=` of a step.

    Example:
        >>> mr.Limits(rpm=500, tpm=200_000)
        Limits(rpm=500, tpm=200000, concurrent=None)
    """

    rpm: float | None = None
    """Most calls per minute."""
    tpm: int | None = None
    """Most tokens per minute, as functions count them with `context.spend`."""
    concurrent: int | None = None
    """Most calls under way at once."""

    def __post_init__(self) -> None:
        _check("Limits", self)


def _check(call: str, given: Budget | Limits) -> None:
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    if all(value is None for value in values.values()):
        raise UserError(f"{call}() limits nothing\n  to fix: give {', '.join(values)}")
    for name, value in values.items():
        kinds = (int, float) if name in ("usd", "rpm") else int
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
            what = "a number above 0" if name in ("usd", "rpm") else "a whole number of at least 1"
            raise UserError(f"{call}: {name} is {value!r}\n  to fix: give {what}")
