"""Several map outputs in one object, partition after partition: fewer, larger reads in a bucket.

    merged/{digest}.ipc    for each partition the bytes of each of these outputs, side by side

The digest is of the attempts and their contents, so a later run that reuses them finds the object.
It has no index: the entries of its outputs say where each piece is. It is there or not: whatever is
missing or wrong is read from the outputs themselves.

Invariant: no byte of such an object is used before it was found to be the output's own, by the
checksum of its entry.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.errors import DataLost, StorageError
from millrace.ids import AttemptId
from millrace.limits import KIB, MIB
from millrace.shuffle import reader
from millrace.shuffle.partition_entries import (
    DATA_FILE,
    NO_FILE,
    EntryArray,
    PartitionMeta,
    meta_of,
)
from millrace.shuffle.payload import checksum
from millrace.shuffle.stage_entries import MergedRange
from millrace.storage import layout, modes
from millrace.storage.store import Store, storage_errors

OUTPUTS_TOGETHER_MAX: Final = 32
BYTES_TOGETHER_MAX: Final = 64 * MIB
READS_WORTH_MERGING: Final = 1024
"""Of fewer ranges, reading them one by one takes less than another round of tasks."""
RANGE_BYTES_MAX: Final = 256 * KIB
"""Of larger ranges, the bytes cost more than the requests do."""
_LOG: Final = logging.getLogger(__name__)

Part = tuple[int, AttemptId, PartitionMeta]
"""A range that is read: its output's position in the stage, the attempt, and where it is there."""


@dataclass(frozen=True, slots=True)
class Group:
    """Outputs that follow one another, to be merged: their attempts, and all their entries."""

    range: MergedRange
    attempts: tuple[AttemptId, ...]
    entries: EntryArray
    """By partition, then by output."""


def plan(table: EntryArray, attempts: Sequence[AttemptId], contents: Sequence[str]) -> list[Group]:
    """The groups of outputs that are worth merging; `table` has the entries by partition."""
    partitions = len(table)
    sizes = table["bytes"].sum(axis=0)
    ranges = int((table["bytes"] > 0).sum())
    if ranges < READS_WORTH_MERGING or int(sizes.sum()) > ranges * RANGE_BYTES_MAX:
        return []
    if not np.isin(table["form"], (NO_FILE, DATA_FILE)).all():
        return []
    groups = [
        Group(
            MergedRange(first, count, _digest(attempts, contents, first, count)),
            tuple(attempts[first : first + count]),
            table[:, first : first + count],
        )
        for first, count in _cut(sizes.tolist())
        if count > 1
    ]
    # Each output is read once more, and each group written; each partition of a group is one read.
    merged = sum(group.range.count for group in groups)
    saved = merged * partitions - len(groups) * partitions
    return groups if saved >= 2 * (merged + len(groups)) else []


def _cut(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = together = 0
    for position, size in enumerate(sizes):
        full = position - first >= OUTPUTS_TOGETHER_MAX or together + size > BYTES_TOGETHER_MAX
        if full and position > first:
            yield first, position - first
            first, together = position, 0
        together += size
    if sizes:
        yield first, len(sizes) - first


def _digest(attempts: Sequence[AttemptId], contents: Sequence[str], first: int, count: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for position in range(first, first + count):
        digest.update(f"{attempts[position]}:{contents[position]};".encode())
    return digest.hexdigest()


def write(store: Store, group: Group) -> bool:
    """Merge a group, unless it is there already. Returns whether it is there now, best effort."""
    name, size = layout.merged_name(group.range.digest), int(group.entries["bytes"].sum())
    if store.sizes(layout.MERGED, [name]).get(name) == size:
        return True
    try:
        with store.payload_folder(layout.MERGED) as folder:
            path = os.path.join(folder, name)
            with storage_errors(f"writing {path}"):
                _write(store, group, path)
            store.keep(folder, layout.MERGED, [name], sync=False)
    except (StorageError, DataLost) as error:
        _LOG.info("%d map outputs are not merged: %s", group.range.count, error)
        return False
    return True


def _write(store: Store, group: Group, path: str) -> None:
    """Put the ranges of all outputs together; each output is read once, and found right."""
    outputs = [_whole(store, *each) for each in zip(group.attempts, group.entries.T, strict=True)]
    modes.make_file(path)
    with open(path, "wb") as file:
        for partition, entries in enumerate(group.entries):
            for attempt, data, entry in zip(group.attempts, outputs, entries, strict=True):
                if entry["bytes"]:
                    piece = data.slice(int(entry["offset"]), int(entry["bytes"]))
                    meta = meta_of(entry.item(), partition)
                    reader.check_bytes(piece, meta, where=f"map output {attempt}")
                    file.write(memoryview(piece))


def _whole(store: Store, attempt: AttemptId, entries: EntryArray) -> pa.Buffer:
    """All bytes of a map output."""
    size = int((entries["offset"] + entries["bytes"]).max())
    if not size:
        return pa.py_buffer(b"")
    path = f"{layout.attempt_folder(attempt)}/{layout.DATA_FILE}"
    try:
        length, data = store.load(path, 0, size)
    except FileNotFoundError as error:
        raise DataLost(f"{store.path(path)} is gone\n  to fix: run the map task again") from error
    if length < size:
        raise DataLost(f"{store.path(path)} is cut short\n  to fix: run the map task again")
    return data


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Ranges of one partition that lie side by side in a merged object, or one that does not."""

    parts: tuple[Part, ...]
    path: str | None = None
    offset: int = 0

    @property
    def bytes(self) -> int:
        """Of all ranges."""
        return sum(meta.bytes for _, _, meta in self.parts)


def spans(
    parts: Iterable[Part], column: EntryArray, outputs: int, merged: Sequence[MergedRange]
) -> Iterator[ReadSpan]:
    """What is read of a partition, in order: side by side where that is possible.

    `column` has the entries of all outputs of the stage, and behind them those of merged objects.
    """
    firsts = np.array([each.first for each in merged])
    ends = np.cumsum(column["bytes"][:outputs])

    def group_of(part: Part) -> int | None:
        number = int(np.searchsorted(firsts, part[0], side="right")) - 1
        inside = number >= 0 and part[0] < firsts[number] + merged[number].count
        return number if inside else None

    for number, some in groupby(parts, key=group_of):
        together = tuple(some)
        if number is None or len(together) == 1:
            yield from (ReadSpan((part,)) for part in together)
            continue
        begin = int(ends[together[0][0]]) - together[0][2].bytes
        if int(ends[together[-1][0]]) - begin != sum(meta.bytes for _, _, meta in together):
            yield from (ReadSpan((part,)) for part in together)  # Some between them are not wanted.
            continue
        before = int(ends[firsts[number] - 1]) if firsts[number] else 0
        path = f"{layout.MERGED}/{layout.merged_name(merged[number].digest)}"
        offset = int(column["offset"][outputs + number]) + begin - before
        yield ReadSpan(together, path, offset)


def read(store: Store, some: Iterable[ReadSpan]) -> Iterator[pa.Buffer]:
    """The checked bytes of all ranges, in order; some are fetched ahead."""
    for buffers in store.ahead(
        lambda span: _read_span(store, span), some, size_of=lambda span: span.bytes
    ):
        yield from buffers


def _read_span(store: Store, span: ReadSpan) -> list[pa.Buffer]:
    whole = None if span.path is None else _load(store, span)
    buffers = []
    position = 0
    for _, attempt, meta in span.parts:
        data = None if whole is None else whole.slice(position, meta.bytes)
        position += meta.bytes
        if data is None or checksum(data) != meta.checksum:
            data = reader.map_partition(store, attempt, meta)
        buffers.append(data)
    return buffers


def _load(store: Store, span: ReadSpan) -> pa.Buffer | None:
    assert span.path is not None
    try:
        _, data = store.load(span.path, span.offset, span.bytes)
    except FileNotFoundError:
        data = pa.py_buffer(b"")
    if data.size == span.bytes:
        return data
    _LOG.info("%s is gone; the map outputs are read one by one", store.path(span.path))
    return None


def sweep(store: Store, named: Collection[str], *, changed_before_ms: int) -> None:
    """Remove merged objects that no manifest names and that no run is about to name."""
    for name in store.names(layout.MERGED):
        path = f"{layout.MERGED}/{name}"
        if name not in named:
            changed = store.changed_at_ms(path)
            if changed is not None and changed <= changed_before_ms:
                store.remove_file(path)
