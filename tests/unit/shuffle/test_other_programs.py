"""Programs that know nothing of Millrace read a partition by what its index says."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import write

from millrace.config import Config
from millrace.ids import AttemptId
from millrace.keys import HashPartitioner
from millrace.storage.local import LocalStore

TABLE = pa.table(
    {
        "x": range(3000),
        "name": [None if n % 7 == 0 else f"näme {n % 11}" for n in range(3000)],
        "amount": [n / 4 for n in range(3000)],
    }
)
COMPRESSIONS = pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])


@pytest.fixture
def attempt_folder(store: LocalStore, compression: str) -> str:
    limits = Config().with_options(compression=compression)
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, TABLE, by=HashPartitioner("x", 5), config=limits)
    return os.path.join(store.root, "shuffle", "1", "0", "0", "1")


def partitions_by_json(folder: str) -> list[dict[str, Any]]:
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        return list(json.load(file)["partitions"])


def partitions_by_binary(folder: str) -> list[dict[str, Any]]:
    data = Path(folder, "index.bin").read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version) == (b"FFQI", 2)
    assert json.loads(data[12 : 12 + length])["partitions"] * 40 == len(data) - 12 - length
    names = ("offset", "bytes", "rows", "checksum", "batches", "form")
    entries = struct.iter_unpack("<4Q2I", data[12 + length :])
    return [dict(zip(names, entry, strict=True), file="data.ipc") for entry in entries]


def stream_of(folder: str, entry: dict[str, Any]) -> bytes:
    with open(os.path.join(folder, entry["file"]), "rb") as file:
        file.seek(entry["offset"])
        return file.read(entry["bytes"])


EXPECTED = sorted(zip(*TABLE.to_pydict().values(), strict=True))


@COMPRESSIONS
def test_plain_pyarrow_reads_every_row(attempt_folder: str) -> None:
    found = []
    for entry in partitions_by_binary(attempt_folder):
        table = pa.ipc.open_stream(stream_of(attempt_folder, entry)).read_all()
        assert table.num_rows == entry["rows"]
        found += list(zip(*table.to_pydict().values(), strict=True))

    assert sorted(found) == EXPECTED


@COMPRESSIONS
def test_polars_reads_every_row(attempt_folder: str) -> None:
    found = []
    for entry in partitions_by_json(attempt_folder):
        frame = pl.read_ipc_stream(stream_of(attempt_folder, entry))
        assert frame.height == entry["rows"]
        found += frame.rows()

    assert sorted(found) == EXPECTED


@COMPRESSIONS
def test_duckdb_reads_every_row(attempt_folder: str) -> None:
    found = []
    with duckdb.connect() as connection:
        for entry in partitions_by_json(attempt_folder):
            rows = pa.ipc.open_stream(stream_of(attempt_folder, entry))
            connection.register("rows_of_partition", rows)
            found += connection.sql("select x, name, amount from rows_of_partition").fetchall()

    assert sorted(found) == EXPECTED
