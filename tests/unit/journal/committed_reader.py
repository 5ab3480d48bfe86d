"""An oracle: which rows of a journal are committed, found from its rows in order alone.

Invariant: no row is released before it is known to be committed, and none is released twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core import sequencing
from millrace.journal.core.committed_rows import Mask, stable_end, stamps_of
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.sequencing import RowEffect, RowStamps

_ZERO: Final = Offset(0)


@dataclass(slots=True)
class CommittedReader:
    """Takes a journal's rows as they come and releases those that are committed, in order.

    For journals that others write, where duplicates and errors may lie in the journal itself. An
    erroneous row is left out and counted.
    """

    states: dict[ProducerId, sequencing.Sequence] = field(default_factory=dict)
    errors: int = 0
    _held: list[_HeldRows] = field(default_factory=list)
    _next: Offset = _ZERO

    @classmethod
    def starting(cls, states: Mapping[ProducerId, sequencing.Sequence]) -> CommittedReader:
        """A reader that knows where producers stand."""
        return cls(dict(states))

    def on_rows(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take the next rows; return those that are now known to be committed."""
        if not rows.num_rows:
            return []
        stamps = stamps_of(rows)
        before = dict(self.states)
        sequenced = sequencing.sequence_rows(stamps, before)
        self.states.update(sequenced.states)
        self.errors += int(np.isin(sequenced.outcomes, sequencing.ERRORS).sum())
        held = _HeldRows(rows, stamps, sequenced.outcomes == RowEffect.COMMITS_ITSELF)
        self._held.append(held)
        self._next = Offset(int(stamps.offsets[-1]) + 1)
        self._settle(held, sequenced.outcomes, before)
        return self._release()

    def stable_end(self) -> Offset:
        """The first offset that is not decided yet."""
        return stable_end(self.states.values(), self._next)

    def _settle(
        self,
        held: _HeldRows,
        outcomes: npt.NDArray[np.uint8],
        before: Mapping[ProducerId, sequencing.Sequence],
    ) -> None:
        """Show the rows of transactions that an ACK among these rows committed."""
        begins = {p: s.open.begin for p, s in before.items() if s.open is not None}
        held.pending |= (outcomes == RowEffect.BEGINS) | (outcomes == RowEffect.EXTENDS)
        turning = np.isin(outcomes, (RowEffect.BEGINS, RowEffect.COMMITS, RowEffect.ROLLS_BACK))
        for row in np.flatnonzero(turning).tolist():
            producer = ProducerId(int(held.stamps.producers[row]))
            offset = Offset(int(held.stamps.offsets[row]))
            if outcomes[row] == RowEffect.BEGINS:
                begins[producer] = offset
                continue
            commits = bool(outcomes[row] == RowEffect.COMMITS)
            for pending in self._held:
                pending.decide(producer, begins[producer], offset, commits=commits)
            del begins[producer]

    def _release(self) -> list[pa.RecordBatch]:
        stable = self.stable_end()
        out = []
        while self._held:
            held = self._held[0]
            count = int(np.searchsorted(held.stamps.offsets, stable))
            shown = held.rows.slice(0, count).filter(pa.array(held.visible[:count]))
            if shown.num_rows:
                out.append(shown)
            if count < held.rows.num_rows:
                self._held[0] = held.from_row(count)
                break
            self._held.pop(0)
        return out


@dataclass(slots=True)
class _HeldRows:
    """Rows that are not all decided."""

    rows: pa.RecordBatch
    stamps: RowStamps
    visible: Mask
    pending: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.pending = np.zeros(len(self.visible), np.bool_)

    def decide(self, producer: ProducerId, begin: Offset, end: Offset, *, commits: bool) -> None:
        offsets = self.stamps.offsets
        mine = self.pending & (self.stamps.producers == producer)
        mine &= (offsets >= begin) & (offsets < end)
        self.visible |= mine & commits
        self.pending &= ~mine

    def from_row(self, row: int) -> _HeldRows:
        left = _HeldRows(
            self.rows.slice(row),
            RowStamps(
                offsets=self.stamps.offsets[row:],
                producers=self.stamps.producers[row:],
                clocks=self.stamps.clocks[row:],
                flags=self.stamps.flags[row:],
            ),
            self.visible[row:],
        )
        left.pending = self.pending[row:]
        return left


def committed_rows(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The committed rows of a journal that is given from its beginning."""
    reader = CommittedReader()
    return [shown for batch in batches for shown in reader.on_rows(batch)]
