"""Calls that ended their process: which rows they were for, and how often that happened. Pure.

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
    """The rows, by the offsets of the input rows they were made of: from here."""
    next: int
    """To here, which is not one of them."""
    repeat: int = 0
    """Which of the rows that were made of the one input row; 0 for a whole batch."""
    attempts: int = 0
    """How many calls failed so far in this run; 0 where the rows were in doubt and no more."""
    middle: int | None = None
    """Where a batch that is out of attempts is cut to find the rows that end the process."""

    def detail(self) -> dict[str, Any]:
        """For the event that records it."""
        return asdict(self)


class Deaths:
    """All that are known of one unit in this run."""

    def __init__(self, deaths: Iterable[Death] = ()) -> None:
        self._deaths: dict[tuple[str, int, int, int], Death] = {}
        for death in deaths:
            self.add(death)

    @classmethod
    def of(cls, events: Iterable[JobEvent], journal: str, steps: Collection[str]) -> Deaths:
        """Those that events of a run record for a journal and steps that read it."""
        return cls(
            Death(step=event.step, **{n: v for n, v in event.detail.items() if n != "journal"})
            for event in events
            if event.happened is JobEventKind.DIED
            and event.detail["journal"] == journal
            and event.step in steps
        )

    def add(self, death: Death) -> None:
        """Note one; of the same rows the one with the most attempts counts."""
        key = (death.step, death.first, death.next, death.repeat)
        known = self._deaths.get(key)
        if known is None or known.attempts <= death.attempts:
            self._deaths[key] = death

    def attempts(self, step: str, first: int, next_: int, repeat: int = 0) -> int | None:
        """How many calls for exactly these rows are known to have failed; None if none died."""
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
        """How many calls were made already for rows of a batch, by place; a batch has place 0."""
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
