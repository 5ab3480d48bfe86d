"""Guesses, from a few rows, how many rows of a task fall into one group, and into the largest one.

With few rows to a group, putting a task's own rows together before the exchange costs more than it
saves, unless so many rows have one key that the task that gets them all would hold up the others.
Invariant: the same files give the same guess, so that a plan is cut the same way again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.scan.file_mapping import FromFile
from millrace.scan.remote_files import random_access
from millrace.scan.source import FileSource

SAMPLE_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """What a sample says of the groups of some keys."""

    rows_per_group: float
    """Of one map task."""
    largest_share: float
    """The part of all rows that have the most frequent key; 0 if each key was seen once."""


def estimate_groups(
    source: FileSource, keys: Sequence[str], split_bytes: int
) -> GroupEstimate | None:
    """The groups of these keys, about; None if the files do not tell."""
    keys = [key for key in keys if key not in source.partitions]  # Others are one for a file.
    if source.format != "parquet" or not keys:
        return None
    shape = max(source.shapes, key=lambda candidate: candidate.bytes)
    if shape.mapping is not None:
        sources = [shape.mapping.columns[key] for key in keys]
        if not all(isinstance(one, FromFile) for one in sources):
            return None
        keys = [one.name for one in sources if isinstance(one, FromFile)]
    try:
        with pq.ParquetFile(random_access(shape.file.path, shape.file.options)) as file:
            rows = file.metadata.num_rows
            middle = file.metadata.num_row_groups // 2
            batches = file.iter_batches(
                SAMPLE_ROWS, row_groups=[middle], columns=list(keys), use_threads=False
            )
            sample = next(batches, None) if rows else None
    except (pa.ArrowException, OSError):
        return None  # The task that reads the file will say what is wrong with it.
    if sample is None:
        return None
    sizes = _group_sizes(sample, keys)
    if sizes is None:
        return None
    of_task = min(rows, rows * split_bytes // max(1, shape.bytes))
    groups = expected_distinct(population(len(sizes), sample.num_rows), of_task)
    largest = pc.max(sizes).as_py()
    return GroupEstimate(
        rows_per_group=float(of_task / max(1.0, groups)),
        largest_share=largest / sample.num_rows if largest > 1 else 0.0,
    )


def population(distinct: int, drawn: int) -> float:
    """How many values there are if so many different ones were seen in so many draws."""
    if distinct >= drawn:
        return math.inf
    low, high = float(distinct), 1e15
    for _ in range(100):
        middle = math.sqrt(low * high)
        if expected_distinct(middle, drawn) < distinct:
            low = middle
        else:
            high = middle
    return low


def expected_distinct(values: float, drawn: int) -> float:
    """How many different ones of so many values are seen in so many draws, on average."""
    if math.isinf(values):
        return float(drawn)
    return -values * math.expm1(-drawn / values)


def _group_sizes(sample: pa.RecordBatch, keys: Sequence[str]) -> pa.ChunkedArray | None:
    """How many rows of the sample each group has."""
    try:
        table = pa.Table.from_batches([sample])
        return table.group_by(list(keys)).aggregate([([], "count_all")])["count_all"]
    except pa.ArrowException:
        return None
