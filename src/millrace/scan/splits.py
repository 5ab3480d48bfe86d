"""Cuts input files into map tasks and shares map tasks out to Spark tasks. Pure.

A map task is the unit that is kept and reused, so it is cut by its own file alone: adding, removing
or changing one file changes no other file's tasks. A Spark task is only a runner; it takes on
several small map tasks, and slots pull Spark tasks from Spark's list as they become free.

Invariant: every row group of every file is in exactly one map task, and every map task in exactly
one Spark task.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash

from millrace.limits import MIB
from millrace.scan.file_mapping import FileMapping
from millrace.scan.input_files import InputFile

SHARE_BYTES_MIN: Final = 32 * MIB
"""So many bytes are worth a Spark task, which costs about 6 ms of CPU. Of a stage with fewer for
each slot, every slot runs one Spark task."""
MAP_TASK_COST_BYTES: Final = 4 * MIB
"""What a map task costs beside its rows, in bytes that are read in that time."""
SHARES_LEFT: Final = 4
"""Into how many shares for each slot the rest of a stage would be cut, each time one is made: a
slot at a quarter of the speed ends its first one when the others end the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShape:
    """A file and, if it can be cut, the size in bytes of each piece it can be cut into.

    `column_shares` says which part of its bytes a column takes, where the file tells.
    """

    file: InputFile
    row_group_bytes: tuple[int, ...] | None
    column_shares: Mapping[str, float] = field(default_factory=dict)
    row_group_rows: tuple[int, ...] | None = None
    engine_columns: frozenset[str] = frozenset()
    """Columns that the query engine reads of the file by itself."""
    partition: tuple[Any, ...] = ()
    """The values of the columns in the names of its folders, or that its table notes for it."""
    mapping: FileMapping | None = None
    """How its columns become those of its table, for a file of a table format."""

    @property
    def bytes(self) -> int:
        """Estimated bytes to read."""
        return self.file.size if self.row_group_bytes is None else sum(self.row_group_bytes)

    def bytes_of(self, columns: Sequence[str], all_columns: int) -> int:
        """Estimated bytes to read if only some of its columns are."""
        even = 1 / max(1, all_columns)
        share = sum(self.column_shares.get(name, even) for name in columns)
        return int(self.bytes * min(1.0, share))

    def identity(self) -> dict[str, Any]:
        """What tells this file from every other, and its rows from others of its table."""
        return _whole_identity(self, None)

    def split(
        self, groups: Sequence[int] | None, size: int, *, ends_file: bool = False
    ) -> FileSplit:
        """Some row groups of it, or all."""
        return FileSplit(
            file=self.file,
            row_groups=None if groups is None else tuple(groups),
            bytes=size,
            rows=None if groups is None else _rows(self.row_group_rows, groups),
            ends_file=ends_file,
            engine_columns=self.engine_columns,
            partition=self.partition,
            mapping=self.mapping,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSplit:
    """A file or some row groups of it (for Arrow files: record batches).

    `rows` are the first and the last row of those row groups, where the footer tells.
    """

    file: InputFile
    row_groups: tuple[int, ...] | None
    bytes: int
    rows: tuple[int, int] | None = None
    ends_file: bool = False
    """Whether the last of these rows is the file's."""
    engine_columns: frozenset[str] = frozenset()
    """Columns that the query engine reads of the file by itself."""
    partition: tuple[Any, ...] = ()
    """The values of the columns in the names of its folders, which its path has too.

    Or those that its table notes for it.
    """
    mapping: FileMapping | None = None
    """How its columns become those of its table, for a file of a table format."""

    def identity(self, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """What tells this split, read in these columns, from every other, of every version."""
        groups = None if self.row_groups is None else list(self.row_groups)
        return {**_whole_identity(self, columns), "row_groups": groups}


@dataclass(frozen=True, slots=True)
class MapInput:
    """What one map task reads, in order."""

    splits: tuple[FileSplit, ...]

    @property
    def bytes(self) -> int:
        """Estimated bytes to read."""
        return sum(split.bytes for split in self.splits)

    def identity(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """What tells this input, read in these columns, from every other, of every version."""
        return [split.identity(columns) for split in self.splits]

    def recent(self) -> dict[str, str]:
        """Checksums of files that their times do not tell apart for sure."""
        return {
            split.file.path: split.file.content
            for split in self.splits
            if split.file.content is not None and not split.file.by_content
        }


def cut(
    shapes: Sequence[FileShape], *, split_bytes_target: int, map_tasks_max: int
) -> list[MapInput]:
    """Map tasks for these files: one a file, several for a large one, one for many small ones."""
    splits = [split for shape in shapes for split in _cut_file(shape, split_bytes_target)]
    if len(splits) <= map_tasks_max:
        return [MapInput((split,)) for split in splits]
    return _group(splits, map_tasks_max)


def share_out(
    sizes: Sequence[int], *, slots: int, bytes_max: int, runners_max: int, in_order: bool = False
) -> list[list[int]]:
    """Positions of map tasks for each Spark task, in the order in which slots pull these.

    Large shares come first, then ever smaller ones: a slot at a quarter of the others' speed takes
    fewer, and all slots end at about the same time. With `in_order` the first positions come first,
    in small shares. A small stage has as many shares as slots.
    """
    weights = [max(0, size) + MAP_TASK_COST_BYTES for size in sizes]
    order: Iterable[int] = range(len(sizes))
    if not in_order:
        order = sorted(order, key=lambda position: (-weights[position], position))
    if sum(weights) <= slots * SHARE_BYTES_MIN or runners_max <= slots:
        return _even_shares(weights, order, min(slots, len(sizes), runners_max))
    return _shrinking_shares(weights, order, slots, bytes_max, runners_max, is_small=in_order)


def _even_shares(weights: Sequence[int], order: Iterable[int], count: int) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in range(count)]
    load = [(0, number) for number in range(count)]
    for position in order:
        weight, number = heapq.heappop(load)
        shares[number].append(position)
        heapq.heappush(load, (weight + weights[position], number))
    return shares


def _shrinking_shares(
    weights: Sequence[int],
    order: Iterable[int],
    slots: int,
    bytes_max: int,
    runners_max: int,
    *,
    is_small: bool,
) -> list[list[int]]:
    left = sum(weights)
    least = max(SHARE_BYTES_MIN, 4 * left // runners_max)
    shares: list[list[int]] = []
    weight = target = 0
    for position in order:
        # To the nearest: a share is as much too small as too large.
        is_full = 2 * weight + weights[position] > 2 * target
        if not shares or (is_full and len(shares) < runners_max):
            shares.append([])
            weight = 0
            target = least if is_small else max(least, left // (SHARES_LEFT * slots))
            target = min(target, bytes_max)
        shares[-1].append(position)
        weight += weights[position]
        left -= weights[position]
    return shares


def _cut_file(shape: FileShape, target: int) -> list[FileSplit]:
    groups = shape.row_group_bytes
    if groups is None or len(groups) <= 1 or sum(groups) <= target:
        return [shape.split(None, shape.file.size if groups is None else sum(groups))]
    total = sum(groups)
    pieces: list[list[int]] = [[] for _ in range(-(-total // target))]
    before = 0
    for number, size in enumerate(groups):
        middle = before + size // 2
        pieces[min(middle * len(pieces) // total, len(pieces) - 1)].append(number)
        before += size
    return [
        shape.split(piece, sum(groups[n] for n in piece), ends_file=piece[-1] == len(groups) - 1)
        for piece in pieces
        if piece
    ]


def _rows(sizes: Sequence[int] | None, piece: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last row of row groups that follow one another."""
    if sizes is None:
        return None
    return sum(sizes[: piece[0]]), sum(sizes[: piece[-1] + 1]) - 1


def _whole_identity(part: FileShape | FileSplit, columns: Sequence[str] | None) -> dict[str, Any]:
    """The version of a file, and how its table reads it."""
    mapping = part.mapping
    mapped = {} if mapping is None else mapping.identity(columns, part.partition)
    return {**part.file.identity(), **mapped}


def _group(splits: Sequence[FileSplit], count: int) -> list[MapInput]:
    """Put splits together by a hash of their path, so that one file more or less moves no other."""
    groups: dict[int, list[FileSplit]] = {}
    for split in splits:
        digest = xxhash.xxh3_64_intdigest(f"{split.file.path}:{split.row_groups}".encode())
        groups.setdefault(digest % count, []).append(split)
    return [MapInput(tuple(groups[number])) for number in sorted(groups)]
