"""Decides which attempts count and which may be removed. Pure: listings in, decisions out.

Invariant: an attempt without a valid index does not exist for readers, and neither the latest
attempt of a map task nor one that a run relies on is ever chosen for removal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from millrace.ids import Attempt, AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An attempt with a valid index."""

    id: AttemptId
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A folder without a valid index: being written, or left by a dead task."""

    id: AttemptId
    changed_at_ms: int
    run_is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """An attempt whose index a newer Millrace wrote: not to be read here, nor removed."""

    id: AttemptId


AttemptState = Finished | Unfinished | Newer


def latest(listed: Sequence[AttemptState]) -> Attempt | None:
    """The highest attempt with an index."""
    return max((f.id.attempt for f in listed if isinstance(f, Finished)), default=None)


def expired(
    listed: Sequence[AttemptState], *, relied_on: Collection[AttemptId], now_ms: int, ttl_ms: int
) -> list[AttemptId]:
    """Attempts of one map task that are older than the TTL and not needed."""
    keep = latest(listed)
    return sorted(
        f.id
        for f in listed
        if isinstance(f, Finished)
        and f.id.attempt != keep
        and f.id not in relied_on
        and f.created_at_ms + ttl_ms <= now_ms
    )


def abandoned(listed: Sequence[AttemptState], *, now_ms: int, grace_ms: int) -> list[AttemptId]:
    """Attempts of one map task that a dead task left behind."""
    return sorted(
        f.id
        for f in listed
        if isinstance(f, Unfinished) and not f.run_is_alive and f.changed_at_ms + grace_ms <= now_ms
    )
