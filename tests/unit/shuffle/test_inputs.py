"""Rows that a user hands over lie in the workspace once, whole, as long as somebody needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import HOUR_MS, in_children, now_ms

from millrace.config import Config
from millrace.errors import UserError
from millrace.shuffle import arrow_inputs, cleanup, runs
from millrace.storage.local import LocalStore

CONFIG = Config()
TEXT = pa.schema([("s", pa.string())])


def put(store: LocalStore, data: object) -> str:
    return arrow_inputs.keep(store, arrow_inputs.stream_of(data), sync=True)


def put_numbers(root: str, count: int) -> None:
    """In a process of its own, and again, so that it would see a file that changes."""
    store = LocalStore(root)
    path = put(store, pa.table({"a": np.arange(count)}))
    before = os.stat(path)
    assert put(store, pa.table({"a": np.arange(count)})) == path
    after = os.stat(path)
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


def files(store: LocalStore) -> list[str]:
    return sorted(name for name in store.names("inputs") if not name.endswith((".used", ".lock")))


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"a": np.arange(200_000), "s": [f"näme {n % 7}" for n in range(200_000)]})


def test_equal_rows_are_one_file_however_they_come(store: LocalStore, table: pa.Table) -> None:
    cut = pa.Table.from_batches(
        [batch for n in range(0, 200_000, 777) for batch in table.slice(n, 777).to_batches()]
    )
    encoded = table.set_column(1, "s", table["s"].combine_chunks().dictionary_encode())

    path = put(store, table)
    same = {put(store, cut), put(store, encoded), put(store, table.to_reader(max_chunksize=9999))}
    other = put(store, table.slice(1))

    assert same == {path}
    assert other != path
    assert len(files(store)) == 2
    with pa.ipc.open_file(path) as file:
        assert file.num_record_batches > 1
        assert file.read_all().equals(table.replace_schema_metadata(None))


def test_batches_data_frames_and_empty_tables_are_taken(store: LocalStore) -> None:
    batch = pa.record_batch({"a": [1, 2]})
    table = pa.Table.from_batches([batch])

    assert put(store, batch) == put(store, table)
    assert put(store, table.to_pandas()) == put(store, table)
    texts = pa.table({"s": pa.array(["a", None], pa.large_string())})
    assert put(store, pl.from_arrow(texts)) in {put(store, texts), put(store, texts.cast(TEXT))}
    with pa.ipc.open_file(put(store, table.slice(0, 0))) as file:
        assert file.read_all().num_rows == 0


def test_a_long_stream_is_not_held_in_memory(store: LocalStore) -> None:
    batch = pa.record_batch({"a": np.arange(100_000)})

    def endless() -> Iterator[pa.RecordBatch]:
        before = pa.total_allocated_bytes()
        for _ in range(400):
            assert pa.total_allocated_bytes() - before < 64 * 1024 * 1024
            yield pa.record_batch([pa.array(batch["a"].to_numpy() + 1)], ["a"])

    path = put(store, pa.RecordBatchReader.from_batches(batch.schema, endless()))

    assert os.stat(path).st_size > 300 * 1024 * 1024


def test_what_is_no_rows_is_refused(store: LocalStore) -> None:
    with pytest.raises(UserError, match=r"from_arrow\(\) of a list"):
        put(store, [1, 2])
    with pytest.raises(UserError, match="without columns"):
        put(store, pa.table({}))
    with pytest.raises(UserError, match="several columns are named 'a'"):
        put(store, pa.table([[1], [2]], names=["a", "a"]))
    assert files(store) == []


def test_a_stream_that_fails_leaves_nothing(store: LocalStore) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1]})
        raise ValueError("no more")

    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(ValueError, match="no more"):
        put(store, pa.RecordBatchReader.from_batches(schema, failing()))
    assert files(store) == []


def test_a_damaged_file_is_written_again(store: LocalStore, table: pa.Table) -> None:
    path = Path(put(store, table))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])

    assert put(store, table) == str(path)
    assert path.read_bytes() == whole


def test_processes_that_hand_over_the_same_rows_at_once_share_one_file(store: LocalStore) -> None:
    in_children(put_numbers, [(store.root, 300_000)] * 4)

    assert len(files(store)) == 1


def test_unused_files_go_after_their_time_and_not_before(store: LocalStore) -> None:
    path = put(store, pa.table({"a": [1]}))
    begun = now_ms()

    def clean(hours: float, ttl_hours: float) -> tuple[str, ...]:
        return cleanup.remove_expired(
            store,
            ttl_ms=int(ttl_hours * HOUR_MS),
            now_ms=begun + int(hours * HOUR_MS),
            config=CONFIG,
        ).inputs

    assert clean(0.5, 0) == ()  # Somebody may have described a dataset, and not run it yet.
    assert clean(3, 5) == ()
    removed = clean(6, 5)
    assert [os.path.basename(one) for one in removed] == [os.path.basename(path)]
    assert files(store) == []
    assert clean(6, 5) == ()


def test_files_used_lately_or_by_a_living_run_stay(store: LocalStore) -> None:
    path = put(store, pa.table({"a": [1]}))
    two_hours_ago = (now_ms() - 2 * HOUR_MS) / 1000
    used = path.removesuffix(".arrow") + ".used"
    for name in (path, used):
        os.utime(name, (two_hours_ago, two_hours_ago))

    def clean() -> int:
        return len(cleanup.remove_expired(store, ttl_ms=0, now_ms=now_ms(), config=CONFIG).inputs)

    run = runs.begin_run(store, plan="", about={}, now_ms=now_ms() - 2 * HOUR_MS)
    with runs.heartbeat(store, run.query_id, CONFIG):
        assert clean() == 0
    arrow_inputs.note_use(store, [path, "/elsewhere/x.arrow"])
    assert clean() == 0
    os.utime(used, (two_hours_ago, two_hours_ago))
    assert clean() == 1


def test_drafts_of_killed_processes_are_swept(store: LocalStore) -> None:
    store.make_folder("inputs")
    store.touch("inputs/0123.draft")

    cleanup.remove_expired(store, ttl_ms=0, now_ms=now_ms() + 2 * HOUR_MS, config=CONFIG)

    assert files(store) == []
