"""The next report of a slice, gathered until its flush. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.sequence import RowOutcomes, Sequences, Stamped
from millrace.reads.model.slice_progress import (
    Hints,
    Opens,
    Points,
    Reads,
    SliceProgress,
    collapse,
    run_starts,
)
from millrace.reads.model.tags import Ints


class Gathering:
    """Collects commits, hints, rollbacks and read offsets between two flushes."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._points: list[Points] = []
        self._hinted: list[npt.NDArray[np.bool_]] = []
        self._hints: list[Hints] = []
        self._rolled_back: list[RolledBack] = []
        self._pairs: list[Ints] = []
        self._reads: list[Reads] = []

    def add(
        self, rows: Stamped, done: RowOutcomes, hints: Hints, hinted: npt.NDArray[np.bool_]
    ) -> None:
        """Note what rows did; `hinted` says for each commit whether it has hints."""
        commits = done.commits
        if len(commits):
            points = Points(
                rows.tags[commits], rows.producers[commits], rows.clocks[commits], done.begins
            )
            # Runs within these rows are joined at once, so that little is held.
            starts = run_starts(points, hinted)
            self._points.append(collapse(points, starts))
            self._hinted.append(hinted[starts])
        if len(hints):
            self._hints.append(hints)
        if len(done.rolled_back):
            self._rolled_back.append(done.rolled_back)
        self._pairs.append(done.pairs)
        self._reads.append(_furthest(done.tags, done.nexts))

    def roll_back(self, pairs: Ints, gone: RolledBack) -> None:
        """Note ranges that are rolled back without an ACK."""
        self._pairs.append(pairs)
        self._rolled_back.append(gone)

    def take(self, sequences: Sequences) -> SliceProgress:
        """Everything since the last time, as a report; nothing is held afterwards."""
        points = Points.concat(self._points)
        if len(points):
            pairs = sequences.numbering.number(points.tag, points.producer)
            order = np.argsort(pairs, kind="stable")
            points, hinted = points.take(order), np.concatenate(self._hinted)[order]
            points = collapse(points, run_starts(points, hinted))
        touched = np.unique(np.concatenate([*self._pairs, np.empty(0, np.int64)]))
        tags, producers = sequences.numbering.parts(touched)
        progress = SliceProgress(
            points=points,
            hints=Hints.concat(self._hints),
            opens=Opens(tags, producers, sequences.open_begins(touched)),
            rolled_back=RolledBack.concat(self._rolled_back),
            reads=_last_of_each(Reads.concat(self._reads)),
        )
        self._clear()
        return progress


def _furthest(tags: Ints, nexts: Ints) -> Reads:
    """How far each tag was read, whichever of its producers wrote the last row."""
    order = np.lexsort((nexts, tags))
    return _last_of_each(Reads(tags[order], nexts[order]))


def _last_of_each(reads: Reads) -> Reads:
    """Each tag once, with its last row."""
    tags, places = np.unique(reads.tag[::-1], return_index=True)
    return Reads(tags, reads.offset[::-1][places])
