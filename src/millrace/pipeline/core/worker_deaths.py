"""Calls that ended their process, with their rows and the number of attempts. Pure.

The next worker of the unit records each as an event of the run. Rows named by such an event are
called for alone from then on, so that the next death names one call and costs no other row.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_events import JobEvent, JobEventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Calls for the same rows that ended their process."""

    step: str
    first: int
    """The offset of the first input row of the call."""
    next: int
    """The offset behind the last input row of the call."""
    repeat: int = 0
    """The index of the row among all rows made of its input row; 0 for a whole batch."""
    attempts: int = 0
    """The number of calls that failed in this run; 0 if the rows were only in doubt."""
    middle: int | None = None
    """The offset at which a batch without attempts left is cut, to find the row at fault."""

    def detail(self) -> dict[str, Any]:
        """The detail of the event that records it."""
        return asdict(self)


class Deaths:
    """All known deaths of one unit in this run."""

    def __init__(self, deaths: Iterable[Death] = ()) -> None:
        self._deaths: dict[tuple[str, int, int, int], Death] = {}
        for death in deaths:
            self.add(death)

    @classmethod
    def of(cls, events: Iterable[JobEvent], journal: str, steps: Collection[str]) -> Deaths:
        """The deaths in the events of a run, for a journal and the steps that read it."""
        return cls(
            Death(step=event.step, **{n: v for n, v in event.detail.items() if n != "journal"})
            for event in events
            if event.happened is JobEventKind.DIED
            and event.detail["journal"] == journal
            and event.step in steps
        )

    def add(self, death: Death) -> None:
        """Add a death; for the same rows the death with the most attempts counts."""
        key = (death.step, death.first, death.next, death.repeat)
        known = self._deaths.get(key)
        if known is None or known.attempts <= death.attempts:
            self._deaths[key] = death

    @property
    def has_some(self) -> bool:
        """Whether any call ended its process."""
        return bool(self._deaths)

    def attempts(self, step: str, first: int, next_: int, repeat: int = 0) -> int | None:
        """The number of failed calls for exactly these rows; None if no call ended its process."""
        known = self._deaths.get((step, first, next_, repeat))
        return None if known is None else known.attempts

    def is_suspect(self, offset: int) -> bool:
        """Whether a call for the row at this offset ended its process."""
        return any(death.first <= offset < death.next for death in self._deaths.values())

    def parts(self, rows: HopRows) -> list[tuple[int, int]]:
        """Rows cut so that those of each death are by themselves."""
        ends = {edge for d in self._deaths.values() for edge in (d.first, d.next, d.middle)}
        edges = np.array(sorted(edge for edge in ends if edge is not None), np.int64)
        cuts = sorted({0, len(rows), *np.searchsorted(rows.offsets, edges).tolist()})
        return list(itertools.pairwise(cuts))

    def past(
        self, step: str, rows: HopRows, kind: Literal["row", "batch"], retries: int
    ) -> dict[int, int]:
        """The number of earlier calls for rows of a batch, by index; a whole batch has index 0."""
        deaths = [death for death in self._deaths.values() if death.step == step]
        if not deaths or not len(rows):
            return {}
        if kind == "batch":
            return _past_of_batch(deaths, rows, retries)
        attempts: dict[int, int] = {}
        for death in deaths:
            index = int(np.searchsorted(rows.offsets, death.first)) + death.repeat
            if index < len(rows) and rows.offsets[index] == death.first and death.attempts:
                attempts[index] = death.attempts
        return attempts


def _past_of_batch(deaths: Sequence[Death], rows: HopRows, retries: int) -> dict[int, int]:
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    around = [death for death in deaths if death.first <= first and last < death.next]
    if not around:
        return {}
    nearest = min(around, key=lambda death: death.next - death.first)
    # A half of a batch that is out of attempts is called for once, as after an error.
    attempts = nearest.attempts if nearest.middle is None else retries
    return {0: attempts} if attempts else {}
