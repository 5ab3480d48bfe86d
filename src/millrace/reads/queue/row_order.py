"""The rows of a checkpoint in order: by priority, then clock plus delay, each tag by offset. Pure.

A row's key is the highest clock plus delay of its tag's rows up to it, so sorting by it never
breaks a tag's own order: the result is that of a merge by the tags' first rows.

Blocks come in the order in which they were written. Rows below every clock that is still to come
are settled and go out, so only rows that are out of order are kept in memory, and rows that are in
order already are neither sorted nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.reads.model.tags import Clocks, Ints
from millrace.reads.queue.blocks import StagedStamps, stamps_of
from millrace.reads.queue.producer_pairs import Mask, running_max_within
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits

KEY_MAX: Final = 2**64 - 1
SMALL_ROWS_MAX: Final = 1024
"""Batches below this are put together with others of their schema."""
_LOW: Final = np.int64(0xFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBlock:
    """Visible rows of one block."""

    binding: int
    floor: int
    """No row has a clock below this, none one above the next."""
    ceiling: int
    is_ordered: bool
    load: Callable[[], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Loaded:
    binding: int
    batch: pa.RecordBatch
    stamps: StagedStamps
    keys: Clocks


def in_order(
    pieces: Sequence[VisibleBlock], bindings: Sequence[BindingOrder], limits: QueueLimits
) -> Iterator[pa.RecordBatch]:
    """All rows of blocks, which come in the order in which they were written."""
    by_priority: dict[int, list[VisibleBlock]] = {}
    for piece in pieces:
        by_priority.setdefault(bindings[piece.binding].priority, []).append(piece)
    for priority in sorted(by_priority, reverse=True):
        yield from _by_clock(by_priority[priority], bindings, limits)


def _by_clock(
    pieces: list[VisibleBlock], bindings: Sequence[BindingOrder], limits: QueueLimits
) -> Iterator[pa.RecordBatch]:
    """The rows of one priority."""
    delays = [bindings[piece.binding].delay for piece in pieces]
    floors = [min(p.floor + d, KEY_MAX) for p, d in zip(pieces, delays, strict=True)]
    to_come = _lowest_behind(floors)
    pending: list[_Loaded] = []
    size, goal = 0.0, 1.0
    for number, piece in enumerate(pieces):
        batch = piece.load()
        if batch.num_rows:
            is_settled = min(piece.ceiling + delays[number], KEY_MAX) < to_come[number]
            if not pending and piece.is_ordered and is_settled:
                yield batch
                continue
            stamps = stamps_of(batch)
            keys = _plus(stamps.clock, delays[number])
            pending.append(_Loaded(piece.binding, batch, stamps, keys))
            size += _share(batch, limits)
        if pending and (size >= goal or number == len(pieces) - 1):
            settled, pending = _settle(pending, to_come[number])
            yield from settled
            size = sum(_share(loaded.batch, limits) for loaded in pending)
            goal = max(1.0, 2 * size)


def _share(batch: pa.RecordBatch, limits: QueueLimits) -> float:
    """The share of a batch in the amount that is sorted at a time."""
    rows, size = int(batch.num_rows), int(batch.nbytes)
    return max(rows / limits.batch_rows_target, size / limits.batch_bytes_target)


def _lowest_behind(floors: list[int]) -> list[int]:
    """For each index the lowest value after it; above all keys for the last one."""
    lowest, out = KEY_MAX + 1, []
    for floor in reversed(floors):
        out.append(lowest)
        lowest = min(lowest, floor)
    return out[::-1]


def _plus(clocks: Clocks, delay: int) -> Clocks:
    """Clocks plus a delay, at most `KEY_MAX`."""
    if not delay:
        return clocks
    return np.minimum(clocks, np.uint64(KEY_MAX - delay)) + np.uint64(delay)


def _settle(pending: list[_Loaded], to_come: int) -> tuple[list[pa.RecordBatch], list[_Loaded]]:
    """Sort rows; rows below all keys to come go out, the others stay."""
    keys = np.concatenate([loaded.keys for loaded in pending])
    stamps = StagedStamps.concat([loaded.stamps for loaded in pending])
    order, sorted_keys = _order(keys, stamps)
    cut = len(order)
    if to_come <= KEY_MAX:
        cut = int(np.searchsorted(sorted_keys, np.uint64(to_come), side="left"))
    if not cut:
        return [], pending
    groups = _BindingGroups(pending)
    settled = groups.in_order(order[:cut])
    return settled, groups.kept(order[cut:], keys, stamps)


def _order(keys: Clocks, stamps: StagedStamps) -> tuple[Ints, Clocks]:
    """The sorted order of rows, and their keys in that order."""
    by_tag = _by_tag(stamps)
    tag = stamps.tag[by_tag]
    same = tag[1:] == tag[:-1]
    keys_by_tag = keys[by_tag]
    if (same & (keys_by_tag[1:] < keys_by_tag[:-1])).any():
        group = np.zeros(len(tag), np.int64)
        group[1:] = np.cumsum(~same)
        keys_by_tag = running_max_within(group, keys_by_tag)
        keys = np.empty_like(keys)
        keys[by_tag] = keys_by_tag
    order = np.argsort(keys, kind="stable")  # of a few runs that are sorted already
    sorted_keys = keys[order]
    if (sorted_keys[1:] == sorted_keys[:-1]).any():
        order = by_tag[np.argsort(keys_by_tag, kind="stable")]
    return order, sorted_keys


def _by_tag(stamps: StagedStamps) -> Ints:
    """The order of rows by tag, then offset."""
    tag = stamps.tag
    is_one = (tag == tag[0]).all()
    by_tag = np.arange(len(tag)) if is_one else _radix(tag - tag.min())
    tag, offset = tag[by_tag], stamps.offset[by_tag]
    if ((tag[1:] == tag[:-1]) & (offset[1:] < offset[:-1])).any():
        by_tag = np.lexsort((stamps.offset, stamps.tag))
    return by_tag


def _radix(values: Ints) -> Ints:
    """A stable order of values that are not negative: 16 bits at a time, which numpy does fast."""
    order = np.argsort((values & _LOW).astype(np.uint16), kind="stable")
    shift, highest = 16, int(values.max())
    while highest >> shift:
        digit = (values[order] >> np.int64(shift)) & _LOW
        if not (digit == digit[0]).all():
            order = order[np.argsort(digit.astype(np.uint16), kind="stable")]
        shift += 16
    return order


class _BindingGroups:
    """Rows of several batches, those of one binding and schema together."""

    def __init__(self, loaded: list[_Loaded]) -> None:
        self._bindings: list[int] = []
        self._batches: list[list[pa.RecordBatch]] = []
        group_of, where_of = [], []
        for block in loaded:
            group = self._group(block)
            have = sum(batch.num_rows for batch in self._batches[group])
            self._batches[group].append(block.batch)
            group_of.append(np.full(block.batch.num_rows, group, np.int64))
            where_of.append(np.arange(have, have + block.batch.num_rows))
        self._group_of = np.concatenate(group_of)
        self._where_of = np.concatenate(where_of)
        self._whole = [_joined(batches) for batches in self._batches]

    def _group(self, block: _Loaded) -> int:
        for group, binding in enumerate(self._bindings):
            schema = self._batches[group][0].schema
            if binding == block.binding and schema.equals(block.batch.schema, check_metadata=True):
                return group
        self._bindings.append(block.binding)
        self._batches.append([])
        return len(self._bindings) - 1

    def in_order(self, order: Ints) -> list[pa.RecordBatch]:
        """Rows in this order; neighbours of one group share a batch."""
        batches, groups = self._take(order)
        if len(batches) == 1:
            return batches
        edges = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        begins = [0, *edges.tolist()]
        lengths = np.diff(begins, append=len(order)).tolist()
        done = [0] * len(batches)
        out = []
        for begin, length in zip(begins, lengths, strict=True):
            group = int(groups[begin])
            out.append(batches[group].slice(done[group], length))
            done[group] += length
        return out

    def kept(self, order: Ints, keys: Clocks, stamps: StagedStamps) -> list[_Loaded]:
        """Rows in this order that stay pending."""
        batches, groups = self._take(order)
        out = []
        for group, batch in enumerate(batches):
            if batch.num_rows:
                places = order[groups == group]
                binding = self._bindings[group]
                out.append(_Loaded(binding, batch, stamps.take(places), keys[places]))
        return out

    def _take(self, order: Ints) -> tuple[list[pa.RecordBatch], Ints]:
        """For each group its rows in this order; and the group of each row."""
        groups, where = self._group_of[order], self._where_of[order]
        if len(self._whole) == 1:
            return [self._whole[0].take(pa.array(where))], groups
        masks: list[Mask] = [groups == group for group in range(len(self._whole))]
        whole = zip(self._whole, masks, strict=True)
        return [batch.take(pa.array(where[mask])) for batch, mask in whole], groups


def together(batches: Iterable[pa.RecordBatch], rows_target: int) -> Iterator[pa.RecordBatch]:
    """Put small batches of one schema together, as far as they follow each other."""
    small: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        is_small = batch.num_rows < SMALL_ROWS_MAX
        fits = bool(small) and small[0].schema.equals(batch.schema, check_metadata=True)
        if small and not (is_small and fits and rows < rows_target):
            yield _joined(small)
            small, rows = [], 0
        if is_small:
            small.append(batch)
            rows += batch.num_rows
        else:
            yield batch
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
