"""The batches of a stand-in: they take their time, and end whole, in part or not at all. Pure.

Both providers' servers keep theirs here. Time is an argument. A request of a batch is charged for
once, when the batch ends with an answer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class BatchFate(StrEnum):
    """What became of one request of a batch."""

    ANSWERED = "answered"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a batch goes."""

    seconds: float = 0.0
    """How long it takes."""
    expires: float = 0.0
    """The part of its requests that it does not come to."""
    refuses: float = 0.0
    """The part of its requests that have an error."""
    fails: str = ""
    """Why the whole batch is refused."""


@dataclass(slots=True, kw_only=True)
class DeskBatch:
    """One batch."""

    id: str
    created: float
    requests: Mapping[str, Json]
    """The body of each request, by `custom_id`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""
    input_file: str = ""
    plan: BatchPlan = field(default_factory=BatchPlan)
    cancelled: float | None = None
    """When it was asked to end."""
    is_charged: bool = False

    def ended(self, now: float) -> float | None:
        """When it ended; None if it has not."""
        end = self.created + self.plan.seconds
        if self.cancelled is not None and self.cancelled < end:
            end = self.cancelled
        return end if now >= end else None

    def was_cancelled(self) -> bool:
        """Whether it ended because it was asked to."""
        return self.cancelled is not None and self.cancelled < self.created + self.plan.seconds

    def fates(self, chance: Callable[[str], float]) -> dict[str, BatchFate]:
        """What became of each request, once it has ended. `chance` of a text is always the same."""
        if self.plan.fails:
            return {}
        out = {}
        late = BatchFate.CANCELLED if self.was_cancelled() else BatchFate.EXPIRED
        share = max(self.plan.expires, 1 / 2 if self.was_cancelled() else 0.0)
        for name in self.requests:
            fate = BatchFate.ANSWERED
            if chance(f"{self.id} late {name}") < share:
                fate = late
            elif chance(f"refused {name}") < self.plan.refuses:
                fate = BatchFate.REFUSED
            out[name] = fate
        return out


Plans = Callable[[int], BatchPlan]
"""How the batch of this number goes."""


def at_once(number: int) -> BatchPlan:
    """All batches end at once, whole."""
    del number
    return BatchPlan()


class BatchDesk:
    """All batches of a provider, newest last."""

    def __init__(self, prefix: str = "batch", plans: Plans = at_once) -> None:
        self._prefix, self._plans = prefix, plans
        self._batches: dict[str, DeskBatch] = {}

    def create(
        self,
        now: float,
        requests: Mapping[str, Json],
        *,
        metadata: Mapping[str, str] | None = None,
        endpoint: str = "",
        input_file: str = "",
    ) -> DeskBatch:
        """A new batch."""
        number = len(self._batches)
        batch = DeskBatch(
            id=f"{self._prefix}_{number:06d}",
            created=now,
            requests=dict(requests),
            metadata=dict(metadata or {}),
            endpoint=endpoint,
            input_file=input_file,
            plan=self._plans(number),
        )
        self._batches[batch.id] = batch
        return batch

    def get(self, name: str) -> DeskBatch | None:
        """A batch by its id."""
        return self._batches.get(name)

    def newest(self, after: str | None, limit: int) -> tuple[Sequence[DeskBatch], bool]:
        """Batches behind this one, newest first, and whether there are more."""
        every = list(self._batches.values())[::-1]
        names = [batch.id for batch in every]
        begin = names.index(after) + 1 if after in names else 0
        return every[begin : begin + limit], len(every) > begin + limit

    def cancel(self, now: float, name: str) -> None:
        """Ask a batch to end."""
        batch = self._batches[name]
        if batch.cancelled is None and batch.ended(now) is None:
            batch.cancelled = now

    @property
    def batches(self) -> Sequence[DeskBatch]:
        """All batches, oldest first."""
        return tuple(self._batches.values())
