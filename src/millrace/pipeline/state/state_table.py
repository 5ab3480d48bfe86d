"""Rows that are found by the hash of their key: sorted runs of columns in memory.

A batch's lookup is one binary search in each run, and a change is one new run; runs of similar size
are merged, so their number grows with the logarithm of the rows. The hash of a key is Spark's, of
32 bits: a lookup may return rows of other keys too, and the query over them compares the keys.

Invariant: the rows are those that changes added, without those that changes took out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.limits import GIB
from millrace.pipeline.state.state_rows import HASH, KEPT_NUMBER, REPLACES, added

Hashes = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
_GROWTH: Final = 4
"""A run is merged with the next smaller one unless it is this many times as large."""
_DEAD_SHARE_MAX: Final = 0.5
"""A run with a larger share of rows that were taken out is written anew."""
RUN_BYTES_MAX: Final = GIB
"""Runs are not merged beyond this: a column of texts has 2 GiB at most."""


@dataclass(slots=True)
class _SortedRun:
    """Rows in the order of their hashes."""

    hashes: Hashes
    numbers: Numbers
    rows: pa.RecordBatch
    is_live: npt.NDArray[np.bool_]
    live: int
    by_time: dict[str, _TimeOrder] = field(default_factory=dict)

    def found(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """The positions of live rows, and for each the position of its hash in `hashes`."""
        low = np.searchsorted(self.hashes, hashes, "left")
        high = np.searchsorted(self.hashes, hashes, "right")
        counts = high - low
        asked = np.repeat(np.arange(len(hashes)), counts)
        before = np.cumsum(counts) - counts
        positions = np.arange(len(asked)) + np.repeat(low - before, counts)
        is_live = self.is_live[positions]
        return positions[is_live], asked[is_live]

    def due(self, column: str, bound: int) -> Numbers:
        """The positions of live rows whose time in a column is not above a bound."""
        order = self.by_time.get(column)
        if order is None:
            order = self.by_time[column] = _TimeOrder.of(self.rows.column(column))
        return order.due(bound, self.is_live)

    @property
    def has_many_dead(self) -> bool:
        """Whether it is worth being written anew."""
        return self.live < len(self.hashes) * _DEAD_SHARE_MAX

    def take_out(self, positions: Numbers) -> None:
        self.is_live[positions] = False
        self.live -= len(positions)


@dataclass(slots=True)
class _TimeOrder:
    """The rows of a run in the order of a time. Rows that are due go soon, and are passed once."""

    positions: Numbers
    times: Numbers
    passed: int = 0
    """So many rows at the front are gone."""

    @classmethod
    def of(cls, column: pa.Array) -> _TimeOrder:
        """The order of a column's times; nulls are never due."""
        positions = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        times = column.drop_null().cast(pa.int64()).to_numpy()
        order = np.argsort(times, kind="stable")
        return cls(positions[order], times[order])

    def due(self, bound: int, is_live: npt.NDArray[np.bool_]) -> Numbers:
        """The live rows up to a bound."""
        end = int(np.searchsorted(self.times, bound, "right"))
        if end <= self.passed:
            return np.zeros(0, np.int64)
        some = self.positions[self.passed : end]
        live = is_live[some]
        self.passed += int(live.argmax()) if live.any() else len(some)
        return some[live]


@dataclass(slots=True)
class StateTable:
    """The state of the keys of one unit. For one thread."""

    schema: pa.Schema
    next_number: int = 0
    _runs: list[_SortedRun] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of rows."""
        return sum(run.live for run in self._runs)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the rows take."""
        return sum(
            int(run.rows.nbytes) + run.hashes.nbytes + run.numbers.nbytes + run.is_live.nbytes
            for run in self._runs
        )

    def find(self, hashes: Hashes) -> pa.RecordBatch:
        """The rows of these hashes, each once, with their numbers as the first column."""
        wanted = np.unique(hashes)
        parts = []
        for run in self._runs:
            positions, _ = run.found(wanted)
            if len(positions):
                parts.append(_numbered(run.rows.take(pa.array(positions)), run.numbers[positions]))
        return self._one_batch(parts)

    def all(self) -> pa.RecordBatch:
        """All rows, with their numbers as the first column."""
        parts = []
        for run in self._runs:
            live = pa.array(run.is_live)
            parts.append(_numbered(run.rows.filter(live), run.numbers[run.is_live]))
        return self._one_batch(parts)

    def due(self, column: str, bound: pa.Scalar) -> pa.RecordBatch:
        """The rows whose time in a column is not above a bound, as `find` gives them."""
        parts = []
        for run in self._runs:
            positions = run.due(column, bound.value) if run.live else ()
            if len(positions):
                rows = run.rows.take(pa.array(positions))
                parts.append(_numbered(rows, run.numbers[positions]))
        return self._one_batch(parts)

    def change(self, changes: pa.RecordBatch) -> None:
        """Carry out changes, in their order."""
        taken = changes.filter(pc.is_valid(changes.column(REPLACES)))
        hashes, numbers = taken.column(HASH).to_numpy(), taken.column(REPLACES).to_numpy()
        new, new_numbers, new_hashes = added(changes)
        if len(new_numbers):
            # Rows may be added and taken out by the same changes, if these are of several batches.
            is_own = np.isin(numbers, new_numbers) if len(numbers) else np.zeros(0, np.bool_)
            self._take_out(hashes[~is_own], numbers[~is_own])
            stays = ~np.isin(new_numbers, numbers[is_own])
            self._add(new.filter(pa.array(stays)), new_numbers[stays], new_hashes.to_numpy()[stays])
            self.next_number = max(self.next_number, int(new_numbers.max()) + 1)
        else:
            self._take_out(hashes, numbers)

    def load(self, rows: pa.RecordBatch, numbers: Numbers, hashes: Hashes) -> None:
        """Add rows at once, as those of a snapshot."""
        self._add(rows, numbers, hashes)

    def snapshot(self) -> Iterator[tuple[pa.RecordBatch, Numbers, Hashes]]:
        """All rows with their numbers and hashes, piece by piece."""
        for run in self._runs:
            live = run.is_live
            yield run.rows.filter(pa.array(live)), run.numbers[live], run.hashes[live]

    def _take_out(self, hashes: Hashes, numbers: Numbers) -> None:
        if not len(numbers):
            return
        left = len(numbers)
        for run in self._runs:
            positions, asked = run.found(hashes)
            gone = positions[run.numbers[positions] == numbers[asked]]
            run.take_out(gone)
            left -= len(gone)
        assert not left, "a change takes out rows that are there, each once"

    def _add(self, rows: pa.RecordBatch, numbers: Numbers, hashes: Hashes) -> None:
        count = len(numbers)
        if not count:
            return
        order = np.argsort(hashes, kind="stable")
        self._runs.append(
            _SortedRun(
                hashes[order],
                numbers[order],
                rows.take(pa.array(order)),
                np.ones(count, np.bool_),
                count,
            )
        )
        while (
            len(self._runs) > 1
            and self._runs[-2].live < _GROWTH * self._runs[-1].live
            and _fits(self._runs[-2:])
        ):
            self._merge(len(self._runs) - 2, len(self._runs))
        if self._runs[0].has_many_dead and _fits(self._runs):
            self._merge(0, len(self._runs))
        elif not _fits(self._runs):
            for place, run in enumerate(self._runs):
                if run.has_many_dead:
                    self._merge(place, place + 1)

    def _merge(self, begin: int, end: int) -> None:
        """Write neighbouring runs as one, without the rows that were taken out."""
        some = self._runs[begin:end]
        hashes = np.concatenate([run.hashes[run.is_live] for run in some])
        numbers = np.concatenate([run.numbers[run.is_live] for run in some])
        rows = pa.concat_batches([run.rows.filter(pa.array(run.is_live)) for run in some])
        order = np.argsort(hashes, kind="stable")
        taken = rows.take(pa.array(order))
        live = np.ones(len(order), np.bool_)
        self._runs[begin:end] = [_SortedRun(hashes[order], numbers[order], taken, live, len(order))]

    def _one_batch(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        if not parts:
            schema = pa.schema([pa.field(KEPT_NUMBER, pa.int64()), *self.schema])
            return pa.RecordBatch.from_pylist([], schema)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _fits(runs: Sequence[_SortedRun]) -> bool:
    """Whether runs can be written as one."""
    return sum(int(run.rows.nbytes) for run in runs) <= RUN_BYTES_MAX


def _numbered(rows: pa.RecordBatch, numbers: Numbers) -> pa.RecordBatch:
    schema = pa.schema([pa.field(KEPT_NUMBER, pa.int64()), *rows.schema])
    return pa.RecordBatch.from_arrays([pa.array(numbers), *rows.columns], schema=schema)
