"""Laws of damage: no wrong byte is ever decoded, no missing one taken for empty."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.shuffle.shuffle_kit import folder, payload_files, read, write

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, FormatError
from millrace.ids import AttemptId
from millrace.keys import RoundRobinPartitioner
from millrace.shuffle.index import MapTaskIndex, decode_bin, decode_json
from millrace.shuffle.manifest import decode as decode_manifest
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)
PARTITIONS = 3
TABLE = pa.table({"x": range(50), "y": [f"text {n}" for n in range(50)]})
COMPRESSION = st.sampled_from(["none", "lz4", "zstd"])


@contextmanager
def written(compression: str) -> Iterator[tuple[LocalStore, MapTaskIndex]]:
    with tempfile.TemporaryDirectory() as root:
        store = LocalStore(root)
        limits = Config().with_options(compression=compression)
        yield (
            store,
            write(store, ATTEMPT, TABLE, by=RoundRobinPartitioner(PARTITIONS), config=limits),
        )


def owner_of(index: MapTaskIndex, name: str, position: int) -> int:
    """The partition that a byte of a file belongs to."""
    return next(
        meta.reduce_partition
        for meta in index.partitions
        if meta.file == name and meta.offset <= position < meta.offset + meta.bytes
    )


@settings(deadline=None, max_examples=examples(150))
@given(COMPRESSION, st.integers(0, 2), st.integers(min_value=0), st.integers(1, 255))
def test_any_changed_byte_of_any_file_fails_its_partition_and_no_other(
    compression: str, file: int, position: int, change: int
) -> None:
    with written(compression) as (store, index):
        paths = payload_files(store, ATTEMPT)
        path = paths[file % len(paths)]
        data = bytearray(path.read_bytes())
        position %= len(data)
        data[position] ^= change
        path.write_bytes(data)
        hit = owner_of(index, path.name, position)

        for partition in range(PARTITIONS):
            if partition == hit:
                with pytest.raises(Corrupt) as caught:
                    read(store, ATTEMPT, partition)
                assert str(path) in str(caught.value)
            else:
                rows = read(store, ATTEMPT, partition)
                assert [row["x"] for row in rows] == list(range(partition, 50, PARTITIONS))


@settings(deadline=None)
@given(COMPRESSION, st.integers(min_value=0))
def test_a_file_cut_anywhere_fails_every_partition_that_reached_further(
    compression: str, length: int
) -> None:
    with written(compression) as (store, index):
        path = payload_files(store, ATTEMPT)[-1]
        whole = path.read_bytes()
        length %= len(whole)
        path.write_bytes(whole[:length])

        for meta in index.partitions:
            if meta.file == path.name and meta.offset + meta.bytes > length:
                with pytest.raises(Corrupt, match="cut short"):
                    read(store, ATTEMPT, meta.reduce_partition)
            else:
                assert len(read(store, ATTEMPT, meta.reduce_partition)) == meta.rows


@settings(deadline=None)
@given(COMPRESSION)
def test_a_file_of_zeros_of_the_right_length_is_not_read(compression: str) -> None:
    with written(compression) as (store, index):
        for path in payload_files(store, ATTEMPT):
            path.write_bytes(bytes(path.stat().st_size))

        for meta in index.partitions:
            with pytest.raises(Corrupt):
                read(store, ATTEMPT, meta.reduce_partition)


def test_without_files_every_partition_with_rows_is_lost() -> None:
    with written("none") as (store, index):
        for path in payload_files(store, ATTEMPT):
            path.unlink()

        for meta in index.partitions:
            with pytest.raises(DataLost, match="is gone"):
                read(store, ATTEMPT, meta.reduce_partition)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
DOCUMENT: dict[str, Any] = {
    "query_id": 1,
    "stage_id": 0,
    "map_task": 0,
    "attempt": 1,
    "created_at_ms": 5,
    "fingerprint": None,
    "made_from": {},
    "recent": {},
    "schema": "",
    "partitions": [
        {
            "reduce_partition": 0,
            "file": "part-0.ipc",
            "offset": 0,
            "bytes": 8,
            "rows": 1,
            "batches": 1,
            "checksum": "00" * 8,
        }
    ],
}


def refused_or_read(decode: Callable[[], object]) -> None:
    """Whatever the bytes, the answer is a value or a clear error."""
    try:
        assert decode() is not None
    except (Corrupt, FormatError) as error:
        assert str(error).startswith("here ")  # noqa: PT017


@settings(deadline=None, max_examples=examples(150))
@given(st.data(), JSON)
def test_an_index_with_any_value_in_any_field_is_read_or_refused(
    data: st.DataObject, value: object
) -> None:
    with written("none") as (store, _):
        document = json.loads((folder(store, ATTEMPT) / "index.json").read_bytes())
    inner = data.draw(st.booleans())
    target = document["partitions"][0] if inner else document
    target[data.draw(st.sampled_from(sorted(target)))] = value

    refused_or_read(lambda: decode_json(json.dumps(document).encode(), where="here"))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_as_an_index(data: bytes) -> None:
    refused_or_read(lambda: decode_bin(data, where="here"))
    refused_or_read(
        lambda: decode_bin(b"FFQI" + struct.pack("<II", 1, len(data)) + data, where="here")
    )
    refused_or_read(lambda: decode_bin(b"FFQI" + struct.pack("<I", 1) + data, where="here"))


@settings(deadline=None, max_examples=examples(150))
@given(st.data(), st.integers(0, 255))
def test_an_index_with_any_byte_changed_is_refused_or_the_same(
    data: st.DataObject, byte: int
) -> None:
    with written("none") as (store, index):
        whole = bytearray((folder(store, ATTEMPT) / "index.bin").read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] = byte
    try:
        assert decode_bin(bytes(whole), where="here") == index
    except (Corrupt, FormatError) as error:
        assert str(error).startswith("here ")  # noqa: PT017


@given(JSON)
def test_any_json_is_read_or_refused_as_an_index_or_a_manifest(value: object) -> None:
    data = json.dumps(value).encode()
    refused_or_read(lambda: decode_json(data, where="here"))
    refused_or_read(lambda: decode_manifest(data, where="here"))
    if isinstance(value, dict):
        wrapped = json.dumps({**DOCUMENT, **value}).encode()
        refused_or_read(lambda: decode_json(wrapped, where="here"))
