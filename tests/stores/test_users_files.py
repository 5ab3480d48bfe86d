"""Users' files on servers of three makes: found, told apart and read where they are."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.stores.servers import StoreServer

from millrace.errors import UserError
from millrace.scan.source import FileSource, Listing, open_source
from millrace.scan.splits import cut
from millrace.storage.file_systems import remote_path
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import StorageOptions, storage_options


def at(store: StoreServer, name: str) -> RemotePath:
    return remote_path(f"{store.url}/{name}", storage_options(store.options))


def put_parquet(store: StoreServer, name: str, values: Sequence[int], groups: int = 100) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": list(values)}), sink, row_group_size=groups)
    at(store, name).put(sink.getvalue())


def opened(store: StoreServer, path: str, **options: object) -> FileSource:
    return open_source(
        f"{store.url}/{path}",
        Listing(now_ms=0, recent_ms=0),
        access=storage_options(store.options),
        **options,  # type: ignore[arg-type]
    )


def rows_of(source: FileSource) -> list[dict[str, object]]:
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=100)
    # As a task has them: through a pickle.
    reader, inputs = pickle.loads(pickle.dumps((source.reader(), inputs)))
    batches = [batch for part in inputs for batch in reader.batches(part, 1 << 20)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_folders_globs_and_partition_folders_are_found_and_read(store: StoreServer) -> None:
    for day in (1, 2):
        put_parquet(store, f"t/day={day}/a.parquet", range(day * 10, day * 10 + 3))
    put_parquet(store, "t/_hidden.parquet", [99])
    put_parquet(store, "other.parquet", [7])

    everything = rows_of(opened(store, "t"))
    assert sorted((row["day"], row["v"]) for row in everything) == [
        (day, day * 10 + n) for day in (1, 2) for n in range(3)
    ]
    assert [row["v"] for row in rows_of(opened(store, "t/day=2/*.parquet"))] == [20, 21, 22]
    assert [row["v"] for row in rows_of(opened(store, "other.parquet"))] == [7]
    with pytest.raises(UserError, match="no input files"):
        opened(store, "nowhere")


def test_row_groups_are_tasks_of_their_own(store: StoreServer) -> None:
    put_parquet(store, "big.parquet", range(400), groups=100)
    source = opened(store, "big.parquet")
    assert len(cut(source.shapes, split_bytes_target=1, map_tasks_max=100)) == 4
    assert [row["v"] for row in rows_of(source)] == list(range(400))


def test_csv_json_and_arrow_are_read_packed_or_not(store: StoreServer) -> None:
    at(store, "a.csv").put(b"v,w\n1,x\n2,y\n")
    at(store, "b.csv.gz").put(gzip.compress(b"v,w\n3,z\n"))
    at(store, "c.jsonl").put(b'{"v": 4}\n{"v": 5}\n')
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("v", pa.int64())])) as writer:
        writer.write(pa.record_batch({"v": [6]}))
    at(store, "d.arrow").put(sink.getvalue())

    assert [row["v"] for row in rows_of(opened(store, "*.csv*"))] == [1, 2, 3]
    assert [row["v"] for row in rows_of(opened(store, "c.jsonl"))] == [4, 5]
    assert [row["v"] for row in rows_of(opened(store, "d.arrow"))] == [6]


def test_a_file_of_the_same_size_put_again_is_another_version(store: StoreServer) -> None:
    put_parquet(store, "x.parquet", [1, 2, 3])
    before = opened(store, "x.parquet")
    put_parquet(store, "x.parquet", [1, 2, 4])
    after = opened(store, "x.parquet")

    first, second = before.shapes[0].file, after.shapes[0].file
    assert first.size == second.size
    assert first.identity() != second.identity()
    assert "mtime_ns" not in first.identity(), "versions are told apart by the store's own names"
    with pytest.raises(UserError, match="changed"):
        rows_of(before)
    assert [row["v"] for row in rows_of(after)] == [1, 2, 4]


def test_a_file_is_copied_whole_and_removed(store: StoreServer) -> None:
    put_parquet(store, "from.parquet", range(50))
    source, target = at(store, "from.parquet"), at(store, "folder/to.parquet")
    assert source.copy(target)
    assert target.read() == source.read()
    source.remove()
    source.remove()
    assert source.version() is None
    assert not source.copy(target)
    assert [name for name, _ in at(store, "folder").list()] == ["to.parquet"]


def test_options_show_no_value_and_a_wrong_one_is_named(store: StoreServer) -> None:
    secret = "must-not-be-found"  # noqa: S105 - of nothing
    given = storage_options({"aws_secret_access_key": secret, "AWS_REGION": "x"})
    assert secret not in repr(given)
    put_parquet(store, "a.parquet", [1])
    source = opened(store, "a.parquet")
    values = [value for value in store.options.values() if value != "true"]
    for text in (repr(source), str(source.describe()), str(source.shapes[0].file.identity())):
        assert not any(value in text for value in values)
    with pytest.raises(UserError, match="regoin"):
        remote_path("s3://bucket/x", storage_options({"aws_regoin": "x"}))
    assert StorageOptions() == storage_options({})
