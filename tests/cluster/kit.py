"""Numbered rows in Parquet files, and how they are found again in a shuffle."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace as mr

ROWS = 400


def write_files(folder: Path, files: int) -> Path:
    """File n holds the values from 1000 n on, with keys 0 to 63."""
    folder.mkdir()
    for number in range(files):
        values = pa.array(range(1000 * number, 1000 * number + ROWS))
        table = pa.table({"k": pc.bit_wise_and(values, 63), "v": values})
        pq.write_table(table, folder / f"f{number}.parquet")
    return folder


def all_values(files: int) -> list[int]:
    """What `write_files` wrote."""
    return [value for n in range(files) for value in range(1000 * n, 1000 * n + ROWS)]


def values(shuffle: mr.Shuffle) -> list[int]:
    """What lies in a shuffle, in order."""
    return sorted(v for p in range(shuffle.partitions) for v in shuffle.read(p)["v"].to_pylist())
