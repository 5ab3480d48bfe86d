"""The worked examples that shuffle files must meet, one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import (
    HOUR_MS,
    column,
    folder,
    now_ms,
    payload_files,
    read,
    to_partition,
    values,
    write,
)

from millrace.config import Config
from millrace.errors import Corrupt, DataLost
from millrace.ids import LATEST, AttemptId
from millrace.shuffle import cleanup, reader
from millrace.storage.local import LocalStore


def test_three_rows_fetched_in_7_byte_chunks_are_the_same_three_rows(store: LocalStore) -> None:
    attempt = AttemptId.of(100, 2, 7, 1)
    index = write(store, attempt, column([1, 2, 3]), by=to_partition(3, 4))
    meta = index.partitions[3]

    chunks = list(reader.fetch_chunks(store, attempt, meta, chunk_bytes=7))

    assert len(chunks) > 1
    assert {chunk.size for chunk in chunks[:-1]} == {7}
    whole = b"".join(chunk.to_pybytes() for chunk in chunks)
    reader.check_bytes(pa.py_buffer(whole), meta, where="the chunks")
    batches = list(reader.decode(pa.py_buffer(whole), index.schema))
    assert [row["x"] for batch in batches for row in batch.to_pylist()] == [1, 2, 3]
    assert [read(store, attempt, partition) for partition in (0, 1, 2)] == [[], [], []]


def test_latest_is_the_highest_attempt_and_the_ttl_takes_the_older_one_once(
    store: LocalStore,
) -> None:
    first, second = AttemptId.of(100, 2, 7, 1), AttemptId.of(100, 2, 7, 2)
    write(store, first, column([10]), created_at_ms=1)
    write(store, second, column([20]), created_at_ms=1)
    assert reader.latest_attempt(store, first.task) == 2
    assert values(store, first, LATEST) == [20]

    removed = cleanup.remove_expired(store, ttl_ms=1, now_ms=2, config=Config())

    assert removed.expired == (first,)
    assert removed.attempts == 1
    assert removed.bytes > 0
    assert [found.id.attempt for found in reader.list_attempts(store, first.task)] == [2]
    assert values(store, first) == [20]
    again = cleanup.remove_expired(store, ttl_ms=1, now_ms=2, config=Config())
    assert again == cleanup.CleanupReport()


def test_an_attempt_goes_at_its_time_and_not_a_millisecond_before(store: LocalStore) -> None:
    first, second = AttemptId.of(1, 0, 0, 1), AttemptId.of(1, 0, 0, 2)
    write(store, first, column([10]), created_at_ms=1_000)
    write(store, second, column([20]), created_at_ms=1_000)

    assert cleanup.remove_expired(store, ttl_ms=50, now_ms=1_049, config=Config()).attempts == 0
    assert cleanup.remove_expired(store, ttl_ms=50, now_ms=1_050, config=Config()).attempts == 1


def test_an_attempt_without_an_index_is_not_the_latest_and_is_swept_after_the_grace(
    store: LocalStore,
) -> None:
    second, third = AttemptId.of(1, 0, 0, 2), AttemptId.of(1, 0, 0, 3)
    write(store, second, column([20]))
    write(store, third, column([30]))
    for name in ("index.json", "index.bin"):
        (folder(store, third) / name).unlink()
    assert reader.latest_attempt(store, second.task) == 2

    early = cleanup.remove_expired(store, ttl_ms=HOUR_MS, now_ms=now_ms(), config=Config())
    late = cleanup.remove_expired(
        store, ttl_ms=HOUR_MS, now_ms=now_ms() + 2 * HOUR_MS, config=Config()
    )

    assert early.abandoned == ()
    assert late.abandoned == (third,)
    assert not folder(store, third).exists()
    assert values(store, second) == [20]


def test_a_flipped_byte_fails_the_read_and_names_the_file(store: LocalStore) -> None:
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, column(range(100)), by=to_partition(1, 3))
    (path,) = payload_files(store, attempt)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(Corrupt, match="expected: [0-9a-f]{16}, found: [0-9a-f]{16}") as caught:
        read(store, attempt, 1)

    assert str(path) in str(caught.value)


def test_a_cut_last_byte_fails_the_read_and_names_the_file(store: LocalStore) -> None:
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, column(range(100)), by=to_partition(1, 3))
    (path,) = payload_files(store, attempt)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])

    with pytest.raises(Corrupt, match="cut short") as caught:
        read(store, attempt, 1)

    assert str(path) in str(caught.value)
    assert f"at least {len(whole)} bytes, found: {len(whole) - 1}" in str(caught.value)


def test_a_deleted_file_is_lost_and_never_empty(store: LocalStore) -> None:
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, column(range(100)), by=to_partition(1, 3))
    (path,) = payload_files(store, attempt)
    path.unlink()

    with pytest.raises(DataLost, match="is gone\n  expected: 100 rows") as caught:
        read(store, attempt, 1)

    assert type(caught.value) is DataLost
    assert str(path) in str(caught.value)
    assert read(store, attempt, 0) == []
