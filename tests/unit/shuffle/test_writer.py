"""What an attempt's folder holds, in both forms, and when it holds nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.shuffle.shuffle_kit import (
    column,
    everything,
    folder,
    payload_files,
    read,
    read_all,
    to_partition,
    values,
    write,
)

from millrace.config import MIB, Config
from millrace.errors import AttemptExists, UserError
from millrace.ids import FIRST_ATTEMPT, LATEST, Attempt, AttemptId
from millrace.keys import (
    BroadcastPartitioner,
    HashPartitioner,
    PartitionIds,
    RoundRobinPartitioner,
)
from millrace.shuffle import reader
from millrace.shuffle.writer import begin_attempt, begin_next_attempt, write_map_output
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)


@pytest.mark.parametrize("partitions", [1, 2, 64, 65, 1000])
def test_all_partitions_share_one_file(store: LocalStore, partitions: int) -> None:
    index = write(store, ATTEMPT, column(range(10_000)), by=RoundRobinPartitioner(partitions))

    found = sorted(os.listdir(folder(store, ATTEMPT)))
    assert found == ["data.ipc", "index.bin", "index.json"]
    assert index.rows == 10_000
    assert len(index.partitions) == partitions
    assert sorted(row["x"] for part in read_all(store, index) for row in part) == list(
        range(10_000)
    )


def test_empty_partitions_are_listed_and_have_no_file(store: LocalStore) -> None:
    index = write(store, ATTEMPT, column([5]), by=to_partition(2, 4))

    assert [meta.rows for meta in index.partitions] == [0, 0, 1, 0]
    assert [meta.file is None for meta in index.partitions] == [True, True, False, True]
    assert len(payload_files(store, ATTEMPT)) == 1


def test_an_attempt_without_rows_is_whole_and_empty(store: LocalStore) -> None:
    index = write(store, ATTEMPT, column([]), by=HashPartitioner("x", 3))

    assert payload_files(store, ATTEMPT) == []
    assert read_all(store, index) == [[], [], []]
    assert reader.read_index(store, ATTEMPT.task, LATEST).schema == column([]).schema


def test_a_broadcast_puts_every_row_into_every_partition(store: LocalStore) -> None:
    config = Config(task_memory_bytes_max=64 * 1024)
    index = write(store, ATTEMPT, column(range(20_000)), by=BroadcastPartitioner(3), config=config)

    expected = [{"x": n} for n in range(20_000)]
    assert read_all(store, index) == [expected] * 3


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_rows_are_the_same_and_take_less(store: LocalStore, compression: str) -> None:
    table = pa.table({"x": np.arange(50_000), "text": ["the same words again"] * 50_000})
    limits = Config(task_memory_bytes_max=1 * MIB)
    plain = write(store, AttemptId.of(1, 0, 0, 1), table, config=limits)
    packed = write(
        store,
        AttemptId.of(1, 0, 0, 2),
        table,
        config=limits.with_options(compression=compression),
    )

    assert packed.bytes < plain.bytes / 2
    assert read_all(store, packed) == read_all(store, plain)
    assert packed.rows == 50_000


def test_with_sync_every_file_and_folder_reaches_the_disk_before_the_attempt_counts(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), store.root))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    config = Config(sync=True)
    write(store, ATTEMPT, column(range(100)), by=RoundRobinPartitioner(2), config=config)

    base = "shuffle/1/0/0/1"
    payload = [f"{base}/{path.name}" for path in payload_files(store, ATTEMPT)]
    drafts = [n for n, name in enumerate(synced) if "index.json" in name]
    assert synced[: len(payload)] == payload
    assert drafts
    assert drafts[0] >= len(payload)
    assert {".", "shuffle", "shuffle/1", "shuffle/1/0", "shuffle/1/0/0", base} < set(synced)
    assert values(store, ATTEMPT) == list(range(100))


def test_without_sync_nothing_waits_for_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise AssertionError("nobody asked for that")

    monkeypatch.setattr(os, "fsync", fsync)
    write(store, ATTEMPT, column(range(100)))

    assert values(store, ATTEMPT) == list(range(100))


def test_the_second_writer_of_an_attempt_is_refused_and_the_first_one_s_rows_stay(
    store: LocalStore,
) -> None:
    write(store, ATTEMPT, column([1, 2, 3]))

    with pytest.raises(AttemptExists, match="attempt 1/0/0/1 was already begun"):
        begin_attempt(store, ATTEMPT)

    assert values(store, ATTEMPT) == [1, 2, 3]


def test_writing_into_a_finished_attempt_is_refused_and_changes_nothing(store: LocalStore) -> None:
    write(store, ATTEMPT, column([1, 2, 3]))

    with pytest.raises(AttemptExists, match="has files already(.|\n)*use the next attempt"):
        write_map_output(
            store,
            ATTEMPT,
            column([9]).to_batches(),
            schema=column([]).schema,
            partitioner=HashPartitioner("x", 2),
            config=Config(),
            now_ms=lambda: 1,
        )

    assert values(store, ATTEMPT) == [1, 2, 3]


def test_an_index_that_appears_meanwhile_is_not_replaced(store: LocalStore) -> None:
    write(store, AttemptId.of(9, 0, 0, 1), column([1]))
    theirs = (folder(store, AttemptId.of(9, 0, 0, 1)) / "index.json").read_bytes()

    def rows() -> Iterator[pa.RecordBatch]:
        yield column([2]).to_batches()[0]
        (folder(store, ATTEMPT) / "index.json").write_bytes(theirs)

    with pytest.raises(AttemptExists, match="has an index.json already"):
        write(store, ATTEMPT, rows(), schema=column([]).schema)

    assert (folder(store, ATTEMPT) / "index.json").read_bytes() == theirs


def test_the_next_attempt_is_above_every_one_on_disk(store: LocalStore) -> None:
    task = ATTEMPT.task

    assert begin_next_attempt(store, task, FIRST_ATTEMPT).attempt == 1
    assert begin_next_attempt(store, task, FIRST_ATTEMPT).attempt == 2
    assert begin_next_attempt(store, task, Attempt(7)).attempt == 7
    assert begin_next_attempt(store, task, Attempt(3)).attempt == 8


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (pa.table({"x": pa.array([1], pa.int32())}), "column 'x' is int32, expected int64"),
        (pa.table({"y": [1]}), "missing columns: \\['x'\\]; columns too many: \\['y'\\]"),
        (pa.table({"x": [1], "y": [1]}), "missing columns: none; columns too many: \\['y'\\]"),
    ],
    ids=["type", "name", "more"],
)
def test_a_batch_with_another_schema_is_refused_and_nothing_is_left(
    store: LocalStore, wrong: pa.Table, words: str
) -> None:
    batches = [*column([1, 2]).to_batches(), *wrong.to_batches()]

    with pytest.raises(UserError, match=f"batch 1 does not have the schema.*\n  {words}"):
        write(store, ATTEMPT, batches, schema=column([]).schema)

    assert everything(store) == set()
    assert reader.latest_attempt(store, ATTEMPT.task) is None


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), OSError(5, "theirs")])
def test_rows_that_stop_with_an_error_leave_nothing_and_the_error_stays_theirs(
    store: LocalStore, error: BaseException
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield column(range(1000)).to_batches()[0]
        raise error

    config = Config(task_memory_bytes_max=32 * 1024)
    with pytest.raises(type(error)) as caught:
        write(store, ATTEMPT, rows(), schema=column([]).schema, config=config)

    assert caught.value is error
    assert everything(store) == set()
    write(store, ATTEMPT, column([1]), config=config)
    assert values(store, ATTEMPT) == [1]


def test_keys_that_cannot_be_hashed_are_refused_before_a_row_is_read(store: LocalStore) -> None:
    asked: list[bool] = []

    def rows() -> Iterator[pa.RecordBatch]:
        asked.append(True)
        yield column([1]).to_batches()[0]

    with pytest.raises(UserError, match="no key column 'z'"):
        write(store, ATTEMPT, rows(), schema=column([]).schema, by=HashPartitioner("z", 2))

    assert asked == []
    assert everything(store) == set()


def test_a_thousand_partitions_need_few_open_files(store: LocalStore) -> None:
    opened: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, 50_000, 1000):
            opened.append(len(os.listdir("/proc/self/fd")))
            yield column(range(start, start + 1000)).to_batches()[0]
        opened.append(len(os.listdir("/proc/self/fd")))

    config = Config(task_memory_bytes_max=64 * 1024)
    write(
        store,
        ATTEMPT,
        rows(),
        schema=column([]).schema,
        by=HashPartitioner("x", 1000),
        config=config,
    )

    assert max(opened) - opened[0] <= 3
    assert values(store, ATTEMPT) == list(range(50_000))


TEXT = ["a", None, "", "bb", "a", "ccc" * 20, "é", "a"]
NESTED = {
    "dictionary": pa.array(TEXT).dictionary_encode(),
    "view": pa.array(TEXT, pa.string_view()),
    "bytes view": pa.array([None if t is None else t.encode() for t in TEXT], pa.binary_view()),
    "run ends": pc.run_end_encode(pa.array(TEXT)),
    "list of dictionary": pa.array(
        [["a", None], [], None, ["b"], ["a"] * 3, ["c"], [], ["a"]],
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ),
    "list view": pa.array(
        [["a", None], [], None, ["b"], ["a"] * 3, ["c"], [], ["a"]], pa.list_view(pa.string_view())
    ),
    "list of run ends": pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 3, 4, 5, 6, 6, 8], pa.int32()), pc.run_end_encode(pa.array(TEXT))
    ),
    "fixed list": pa.array(
        [[t, "z"] if t is not None else None for t in TEXT],
        pa.list_(pa.dictionary(pa.int8(), pa.string()), 2),
    ),
    "struct": pa.array(
        [None if t is None else {"d": t, "n": [t]} for t in TEXT],
        pa.struct(
            [("d", pa.dictionary(pa.int8(), pa.string())), ("n", pa.list_view(pa.string_view()))]
        ),
    ),
    "map": pa.array(
        [None if t is None else [(t, {"v": t})] for t in TEXT],
        pa.map_(pa.string_view(), pa.struct([("v", pa.dictionary(pa.int8(), pa.string()))])),
    ),
    "uuid": pa.array([None if t is None else bytes([len(t)]) * 16 for t in TEXT], pa.uuid()),
    "json": pa.array([None if t is None else f'"{t}"' for t in TEXT], pa.json_()),
    "decimal": pa.array([Decimal("1.10")] * 8, pa.decimal128(10, 2)),
    "nothing": pa.nulls(8),
}


@pytest.mark.parametrize("name", NESTED)
def test_encoded_and_nested_columns_come_back_as_plain_values(store: LocalStore, name: str) -> None:
    array = NESTED[name]
    table = pa.table({"x": range(8), "y": array})

    index = write(store, ATTEMPT, table, by=HashPartitioner("x", 3))

    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    found = sorted((row["x"], row["y"]) for part in read_all(store, index) for row in part)
    assert [y for _, y in found] == storage.to_pylist()
    kind = index.schema.field("y").type
    encoded = ("dictionary", "view", "run_end_encoded", "extension")
    assert not any(word in str(kind) for word in encoded)


def test_a_dictionary_that_stands_for_far_more_bytes_does_not_fill_memory(
    store: LocalStore,
) -> None:
    rows = 200_000
    words = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int8)), pa.array(["w" * 1000])
    )
    table = pa.table({"x": np.arange(rows), "y": words})
    before = pa.total_allocated_bytes()
    peak = 0

    class Watching(HashPartitioner):
        def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:
            nonlocal peak
            peak = max(peak, pa.total_allocated_bytes() - before)
            return HashPartitioner.ids(self, batch, first_row)

    index = write(
        store, ATTEMPT, table, by=Watching("x", 4), config=Config(task_memory_bytes_max=16 * MIB)
    )

    assert index.bytes > 200 * 10**6
    assert 0 < peak < 16 * MIB
    assert read(store, ATTEMPT, 0)[0]["y"] == "w" * 1000


def test_columns_that_may_not_be_null_are_read_together_with_those_that_may(
    store: LocalStore,
) -> None:
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    first = write(store, AttemptId.of(1, 0, 0, 1), pa.table({"x": [1]}, schema=strict))
    second = write(store, AttemptId.of(1, 0, 1, 1), column([None, 2]))

    assert first.schema == second.schema == column([]).schema
