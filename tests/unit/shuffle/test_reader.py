"""What a reader gives, what it copies, and what it says when it cannot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import (
    column,
    folder,
    read_partition,
    to_partition,
    write,
)

from millrace.config import MIB, Config
from millrace.errors import MapOutputMissing, UserError
from millrace.ids import LATEST, Attempt, AttemptId
from millrace.keys import HashPartitioner
from millrace.shuffle import reader
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)


def test_uncompressed_rows_are_not_copied(store: LocalStore) -> None:
    table = pa.table({"x": np.arange(1_000_000), "y": np.arange(1_000_000) / 3})
    write(store, ATTEMPT, table, by=HashPartitioner("x", 2))
    del table
    before = pa.total_allocated_bytes()

    batches = list(read_partition(store, ATTEMPT.task, LATEST, 0))

    assert sum(batch.nbytes for batch in batches) > 7 * MIB
    assert pa.total_allocated_bytes() - before < 64 * 1024


def test_compressed_columns_that_nobody_asked_for_are_not_unpacked(store: LocalStore) -> None:
    table = pa.table({"x": np.arange(500_000), "y": ["some text"] * 500_000, "z": [1] * 500_000})
    limits = Config(compression="lz4")
    write(store, ATTEMPT, table, by=HashPartitioner("x", 2), config=limits)
    del table
    before = pa.total_allocated_bytes()

    batches = list(read_partition(store, ATTEMPT.task, LATEST, 0, columns=["z", "x"]))

    assert [batch.schema.names for batch in batches] == [["z", "x"]] * len(batches)
    rows = sum(batch.num_rows for batch in batches)
    assert pa.total_allocated_bytes() - before < rows * 16 * 1.1
    assert set(batches[0]["z"].to_pylist()) == {1}


def test_no_columns_at_all_still_have_their_rows(store: LocalStore) -> None:
    write(store, ATTEMPT, column(range(10)), by=to_partition(1, 2))

    batches = list(read_partition(store, ATTEMPT.task, LATEST, 1, columns=[]))

    assert [(batch.num_columns, batch.num_rows) for batch in batches] == [(0, 10)]


def test_an_unknown_column_is_refused_with_those_that_are_there(store: LocalStore) -> None:
    write(store, ATTEMPT, pa.table({"x": [1], "amount": [2]}), by=to_partition(0, 1))

    with pytest.raises(UserError, match="no column 'amuont'\n  found: columns amount, x"):
        list(read_partition(store, ATTEMPT.task, LATEST, 0, columns=["amuont"]))


def test_a_column_that_is_there_twice_cannot_be_asked_for_by_name(store: LocalStore) -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "y", "y"])
    write(store, ATTEMPT, table, by=to_partition(0, 1))

    with pytest.raises(UserError, match="column 'y' is ambiguous"):
        list(read_partition(store, ATTEMPT.task, LATEST, 0, columns=["y"]))
    (batch,) = read_partition(store, ATTEMPT.task, LATEST, 0)
    assert [one.to_pylist() for one in batch] == [[1], [2], [3]]


@pytest.mark.parametrize("partition", [-1, 2, 100, True])
def test_a_partition_that_is_not_there_is_refused(store: LocalStore, partition: int) -> None:
    write(store, ATTEMPT, column([1]), by=to_partition(0, 2))

    with pytest.raises(UserError, match=f"no partition {partition}\n  found: partitions 0 to 1"):
        list(read_partition(store, ATTEMPT.task, LATEST, partition))


def test_a_missing_attempt_names_those_that_are_there(store: LocalStore) -> None:
    for number in (2, 3):
        write(store, AttemptId.of(7, 2, 13, number), column([1]))
    task = AttemptId.of(7, 2, 13, 1).task

    with pytest.raises(MapOutputMissing) as caught:
        reader.read_index(store, task, Attempt(1))

    assert str(caught.value) == (
        f"no map output at {store.root}/shuffle/7/2/13/1\n"
        "  attempts found: 2, 3\n"
        "  to fix: read attempt 3"
    )


def test_a_map_task_without_attempts_says_so(store: LocalStore) -> None:
    with pytest.raises(MapOutputMissing, match="attempts found: none\n  to fix: run the map task"):
        reader.read_index(store, ATTEMPT.task, Attempt(1))
    with pytest.raises(MapOutputMissing, match="no finished attempt at .*\n.* begun: none"):
        reader.read_index(store, ATTEMPT.task, LATEST)


def test_attempts_begun_and_not_finished_are_named(store: LocalStore) -> None:
    folder(store, ATTEMPT).mkdir(parents=True)

    with pytest.raises(MapOutputMissing, match=r"attempts begun: \[1\]"):
        reader.read_index(store, ATTEMPT.task, LATEST)


def test_chunks_of_no_size_or_from_outside_are_refused(store: LocalStore) -> None:
    index = write(store, ATTEMPT, column([1]), by=to_partition(0, 1))
    meta = index.partitions[0]

    with pytest.raises(UserError, match="chunk size is 0"):
        list(reader.fetch_chunks(store, ATTEMPT, meta, chunk_bytes=0))
    for start in (-1, meta.bytes + 1):
        with pytest.raises(UserError, match=f"start {start} is outside"):
            list(reader.fetch_chunks(store, ATTEMPT, meta, chunk_bytes=1, start=start))


def test_rows_stay_readable_after_their_files_are_removed(store: LocalStore) -> None:
    write(store, ATTEMPT, column(range(1000)), by=to_partition(0, 1))
    batches = list(read_partition(store, ATTEMPT.task, LATEST, 0))

    store.discard("shuffle/1/0/0/1")

    assert [row["x"] for batch in batches for row in batch.to_pylist()] == list(range(1000))
