"""A query larger than its memory finishes by spilling, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.config import MIB
from millrace.engine.duckdb_engine import Engine
from millrace.engine.task_inputs import TaskInput
from millrace.metrics.spills import task_spill

ROWS = 4_000_000
EACH = 200_000
LIMIT = 64 * MIB
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "w": pa.int64()})
JOIN = "SELECT l.k, l.v, r.w FROM input_0 l JOIN input_1 r ON l.k = r.k"
GROUP = "SELECT k, sum(v)::BIGINT AS v, max(w) AS w FROM input_0 GROUP BY k"


def rows() -> Iterator[pa.RecordBatch]:
    """96 MB of rows, each key once, in an order that helps nobody."""
    for first in range(0, ROWS, EACH):
        numbers = np.arange(first, first + EACH)
        keys = (numbers * 2_654_435_761) % (1 << 32)
        yield pa.record_batch([keys, numbers, numbers * 3], schema=SCHEMA)


def stream() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, rows())


def spilled_bytes(folder: Path) -> int:
    return sum(
        os.path.getsize(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
    )


@pytest.mark.parametrize("sql", [JOIN, GROUP])
def test_a_query_larger_than_its_memory_spills_and_finishes(tmp_path: Path, sql: str) -> None:
    engine = Engine(memory_bytes_max=LIMIT, spill_folder=str(tmp_path), time_zone="UTC")
    inputs = {"input_0": TaskInput(stream), "input_1": TaskInput(stream)}

    seen, total, most = 0, 0, 0
    with task_spill() as spilled:
        for batch in engine.run(sql, inputs, SCHEMA):
            seen += batch.num_rows
            total += int(np.sum(batch.column("v").to_numpy()))
            most = max(most, spilled_bytes(tmp_path))

    assert seen == ROWS
    assert total == ROWS * (ROWS - 1) // 2
    assert most > LIMIT // 4
    assert spilled.bytes > most * 0.9, "what is counted is what was on disk"
    assert spilled_bytes(tmp_path) == 0
    assert os.listdir(tmp_path) == []
