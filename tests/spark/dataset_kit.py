"""Tables, configs and comparisons for tests of datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr

CUT_UP = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=20_000,
    read_together_bytes_max=1,
    split_bytes_target=20_000,
    reduced_rows_min=1,
)
BROADCAST = CUT_UP.with_options(broadcast_bytes_max=1 << 30)
CONFIGS = {"one task": mr.Config(), "cut up": CUT_UP, "broadcast": BROADCAST}
_ONE_TASK = pytest.param("one task", marks=pytest.mark.slow)
WITH_JOINS = [_ONE_TASK, "cut up", "broadcast"]
"""How operators are tried. SQL, methods and tutorials are tried in one task in quick tests too."""
WITHOUT_JOINS = [_ONE_TASK, "cut up", pytest.param("broadcast", marks=pytest.mark.slow)]
"""For tests of what broadcasts change little."""


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """Rows as text in an order of their own; NaN equals itself, and -0.0 equals 0.0 as in Spark."""
    return sorted(
        tuple(repr(0.0 if value == 0.0 else value) for value in row.values())
        for row in table.to_pylist()
    )


def write(folder: Path, table: pa.Table, files: int = 3) -> str:
    folder.mkdir()
    each = -(-table.num_rows // files) or 1
    for number in range(files):
        part = table.slice(number * each, each)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=500)
    return str(folder)


def random_table(seed: int, rows: int, *, keys: int) -> pa.Table:
    random = np.random.default_rng(seed)
    floats = random.choice([0.0, -0.0, 1.5, np.nan, np.inf, -2.25], rows)
    return pa.table(
        {
            "k": pa.array(random.integers(0, keys, rows), mask=random.random(rows) < 0.05),
            "s": pa.array([f"näme-{i}" for i in random.integers(0, 7, rows)]),
            "f": pa.array(floats, mask=random.random(rows) < 0.1),
            "v": pa.array(random.integers(-1000, 1000, rows).astype("int32")),
        }
    )
