"""Approximate times of checkpoints, from which follows how long a producer is silent. Pure."""

from __future__ import annotations

import json
from typing import Final

from millrace.reads.model.checkpoint import BEGINNING, CheckpointNumber

_MOMENTS_MAX: Final = 64


class CheckpointTimes:
    """Some moments, each with the number of the last checkpoint by then."""

    def __init__(self) -> None:
        self.last = BEGINNING
        self._moments: list[tuple[int, int]] = []

    def note(self, number: CheckpointNumber, now_ms: int) -> None:
        """A checkpoint is given out. Every other moment is forgotten when there are many."""
        self.last = max(self.last, number)
        if self._moments and now_ms <= self._moments[-1][0]:
            self._moments[-1] = (self._moments[-1][0], number)  # The clock went back.
            return
        self._moments.append((now_ms, number))
        if len(self._moments) > _MOMENTS_MAX:
            self._moments = [*self._moments[:-1:2], self._moments[-1]]

    def number_at(self, moment_ms: int) -> CheckpointNumber:
        """The last known checkpoint that was given out by then; 0 if there is none."""
        known = [number for at_ms, number in self._moments if at_ms <= moment_ms]
        return CheckpointNumber(known[-1]) if known else BEGINNING

    def to_bytes(self) -> bytes:
        """For the store."""
        return json.dumps({"last": self.last, "moments": self._moments}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> CheckpointTimes:
        """From the store."""
        kept = json.loads(content)
        history = cls()
        history.last = CheckpointNumber(kept["last"])
        history._moments = [(at_ms, number) for at_ms, number in kept["moments"]]
        return history
