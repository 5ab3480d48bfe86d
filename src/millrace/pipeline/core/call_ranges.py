"""Cuts the rows in front of an expensive step into the batches that it is called for. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.dead_letters import Letter
from millrace.pipeline.core.hop_rows import HopRows, nothing, together
from millrace.pipeline.core.worker_deaths import Deaths


@dataclass(frozen=True, slots=True)
class FrontFailed:
    """A step in front of the expensive one failed for a row."""

    step: str
    offset: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class FrontStuck:
    """Calls of a step in front of the expensive one never returned."""

    step: str


@dataclass(frozen=True, slots=True)
class FrontStopped:
    """The worker is to end, so the steps in front were stopped."""


FrontEnd = FrontFailed | FrontStuck | FrontStopped
"""Why the steps in front of the expensive one give no more rows."""


@dataclass(frozen=True, slots=True)
class CallRange:
    """Rows to call for, and the offset behind all input rows that were read to get them."""

    rows: HopRows
    next: int
    letters: tuple[tuple[str, Letter], ...] = ()
    """Dead letters of the steps in front, with their step, by offset."""

    def cut(self, count: int) -> CallRange:
        """Only its first rows."""
        if count >= len(self.rows):
            return self
        next_ = int(self.rows.offsets[count - 1]) + 1
        return CallRange(self.rows.slice(0, count), next_, _below(self.letters, next_))

    def letters_below(self, offset: int) -> dict[str, tuple[Letter, ...]]:
        """The dead letters of rows below an offset, by step."""
        found = _below(self.letters, offset)
        return {
            step: tuple(letter for other, letter in found if other == step)
            for step in dict.fromkeys(step for step, _ in found)
        }


class CallRangeBuffer:
    """Rows that were read and not called for yet. Each range begins where the last one ended."""

    def __init__(
        self, schema: pa.Schema, at: int, *, rows_max: int, bytes_max: int, deaths: Deaths
    ) -> None:
        """`deaths`: rows whose calls ended a process get ranges of their own."""
        self._schema, self._deaths = schema, deaths
        self._rows = nothing(schema)
        self._letters: tuple[tuple[str, Letter], ...] = ()
        self._read_to = at
        self._rows_max, self._bytes_max = rows_max, bytes_max

    @property
    def read_to(self) -> int:
        """The offset behind the last row that was read."""
        return self._read_to

    @property
    def is_empty(self) -> bool:
        """Whether no rows wait."""
        return not len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the next range has all the rows that it may have."""
        return len(self._rows) >= self._rows_max

    def add(
        self, rows: HopRows, next_: int, letters: Mapping[str, Sequence[Letter]] | None = None
    ) -> None:
        """Append rows that were read, up to the offset `next_`."""
        self._rows = together(self._schema, [self._rows, rows])
        self._read_to = next_
        if letters:
            added = [(step, letter) for step, some in letters.items() for letter in some]
            added.sort(key=lambda pair: pair[1].offset)
            self._letters += tuple(added)

    def below(self, offset: int) -> CallRange:
        """Remove and return all rows below an offset."""
        rows = self._rows.before(offset)
        self._rows = self._rows.slice(len(rows), len(self._rows))
        return self._with_letters(CallRange(rows, min(offset, self._read_to)))

    def next(self) -> CallRange:
        """Remove and return the next range; without rows if none wait."""
        whole = CallRange(self._rows, self._read_to)
        count = self._fitting()
        self._rows = self._rows.slice(count, len(self._rows))
        return self._with_letters(whole.cut(count) if count else whole)

    def _with_letters(self, range_: CallRange) -> CallRange:
        """A range with the dead letters of its offsets, which are removed."""
        letters = _below(self._letters, range_.next)
        self._letters = self._letters[len(letters) :]
        return CallRange(range_.rows, range_.next, letters)

    def _fitting(self) -> int:
        count = len(self._rows)
        if not count:
            return 0
        row_bytes = max(1, int(self._rows.batch.nbytes) // count)
        fitting = max(1, min(self._rows_max, self._bytes_max // row_bytes))
        _, alone = self._deaths.parts(self._rows)[0]
        return min(fitting, alone)


def _below(letters: tuple[tuple[str, Letter], ...], offset: int) -> tuple[tuple[str, Letter], ...]:
    """The first letters, of rows below an offset; letters are in the order of offsets."""
    return letters[: bisect.bisect_left(letters, offset, key=lambda pair: pair[1].offset)]
