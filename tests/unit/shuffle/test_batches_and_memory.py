"""Few, large batches and bounded memory, whatever the limit, the rows and the partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import child_measures, in_child, read_all, write

from millrace.config import MIB, Config
from millrace.ids import AttemptId
from millrace.keys import CustomPartitioner, HashPartitioner
from millrace.shuffle.index import MapTaskIndex
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)
BATCH_ROWS_MIN = 4096


def small_batches(index: MapTaskIndex) -> list[tuple[int, int]]:
    """Partitions of several batches whose mean is too small."""
    return [
        (meta.rows, meta.batches)
        for meta in index.partitions
        if meta.batches > 1 and meta.rows / meta.batches < BATCH_ROWS_MIN
    ]


@pytest.mark.parametrize(
    ("partitions", "limit", "times"),
    [
        (1, 8 * MIB, 20),
        pytest.param(8, 4 * MIB, 20, marks=pytest.mark.slow),
        (200, 4 * MIB, 20),
        pytest.param(200, 16 * MIB, 20, marks=pytest.mark.slow),
    ],
)
def test_memory_stays_under_the_limit_however_much_is_written(
    tmp_path: Path, partitions: int, limit: int, times: int
) -> None:
    total = limit * times

    code = in_child(child_measures, str(tmp_path), partitions, limit, total)

    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["bytes"] >= total
    assert found["before"] < MIB
    assert limit / 8 < found["peak"] < limit


@pytest.mark.slow
def test_ten_million_rows_in_200_partitions_make_large_batches(store: LocalStore) -> None:
    rows = 1_000_000
    keys = np.random.default_rng(3).permutation(rows * 10)
    table = pa.table({"x": keys, "y": keys.astype(np.float64)})

    index = write(
        store, ATTEMPT, table.to_batches(rows), schema=table.schema, by=HashPartitioner("x", 200)
    )

    assert index.rows == 10_000_000
    assert small_batches(index) == []
    assert sum(meta.batches for meta in index.partitions) == 200


@pytest.mark.parametrize(
    "limit",
    [8 * MIB, *(pytest.param(more * MIB, marks=pytest.mark.slow) for more in (16, 64))],
)
def test_wide_rows_under_a_small_limit_make_large_batches_too(
    store: LocalStore, limit: int
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(5)
        for _ in range(40):
            texts = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(1024), 2048, [None, pa.py_buffer(random.bytes(1024 * 2048))]
            )
            yield pa.record_batch({"x": random.integers(0, 2**60, 2048), "y": texts})

    schema = pa.schema([("x", pa.int64()), ("y", pa.binary(1024))])
    # Half of the rows in one partition, so that it does not fit one batch; 200 partitions.
    crowded = CustomPartitioner(
        lambda batch: np.where(batch["x"].to_numpy() % 2, 7, batch["x"].to_numpy() % 200).astype(
            np.int64
        ),
        200,
    )
    index = write(
        store,
        ATTEMPT,
        rows(),
        schema=schema,
        by=crowded,
        config=Config(task_memory_bytes_max=limit),
    )

    assert index.rows == 40 * 2048
    assert index.partitions[7].rows > 8 * BATCH_ROWS_MIN
    assert index.partitions[7].batches > 1
    assert small_batches(index) == []


def test_a_partition_that_gets_a_few_rows_of_each_batch_has_large_batches_too(
    store: LocalStore,
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, 2_000_000, 50_000):
            yield pa.record_batch({"x": np.arange(start, start + 50_000)})

    rare = CustomPartitioner(lambda batch: (batch["x"].to_numpy() % 100 == 0).astype(np.int64), 2)
    index = write(
        store,
        ATTEMPT,
        rows(),
        schema=pa.schema([("x", pa.int64())]),
        by=rare,
        config=Config(task_memory_bytes_max=1 * MIB),
    )

    assert index.partitions[1].rows == 20_000
    assert small_batches(index) == []
    assert [row["x"] for row in read_all(store, index)[1]] == list(range(0, 2_000_000, 100))


def test_very_wide_rows_do_not_make_batches_without_bound(store: LocalStore) -> None:
    table = pa.table({"x": range(64), "y": [bytes(512 * 1024)] * 64})
    limits = Config(task_memory_bytes_max=16 * MIB, batch_bytes_target=1 * MIB)

    index = write(store, ATTEMPT, table, by=HashPartitioner("x", 2), config=limits)

    for meta in index.partitions:
        assert meta.batches >= meta.bytes // (5 * MIB)
    assert sorted(row["x"] for part in read_all(store, index) for row in part) == list(range(64))
