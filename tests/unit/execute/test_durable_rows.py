"""Rows of tasks become files that count only when the driver commits them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import SchemaMismatch
from millrace.execute.durable_rows import decode_file, encode_file, write_journal_files
from millrace.journal.memory import MemoryBroker
from millrace.keys import HashPartitioner, RoundRobinPartitioner
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry

ROWS = pa.schema([("n", pa.int64())])


def batches(count: int, size: int = 50) -> Iterator[pa.RecordBatch]:
    for begin in range(0, count, size):
        yield pa.record_batch([pa.array(range(begin, begin + size))], schema=ROWS)


def test_rows_take_turns_and_are_written_in_files_of_bounded_size() -> None:
    broker = MemoryBroker()

    files = write_journal_files(
        broker,
        batches(500),
        schema=ROWS,
        partitioner=RoundRobinPartitioner(3),
        bytes_target=800,
        first_row=1,
    )

    for partition in range(3):
        broker.create(f"out/{partition}", ROWS)
    for partition, file in files:
        assert decode_file(encode_file(file), ROWS) == file
        broker.adopt({f"out/{partition}": [file]})
    read = [broker.read(f"out/{n}", 0).rows()["n"].to_pylist() for n in range(3)]
    assert sorted(value for rows in read for value in rows) == list(range(500))
    assert sorted(map(len, read)) == [166, 167, 167]
    assert read[1][:3] == [0, 3, 6], "the first row's number decides which journal gets it"
    assert len(files) > 3 * 3


def test_rows_with_the_same_key_go_to_the_same_journal() -> None:
    broker = MemoryBroker()
    twice = [*batches(100), *batches(100)]

    files = write_journal_files(
        broker, twice, schema=ROWS, partitioner=HashPartitioner("n", 4), bytes_target=1 << 20
    )

    read = []
    for number, file in files:
        broker.create(f"out/{number}", ROWS)
        broker.adopt({f"out/{number}": [file]})
        read.append(broker.read(f"out/{number}", 0).rows()["n"].to_pylist())
    assert len(read) == 4
    assert all(len(rows) == 2 * len(set(rows)) for rows in read)
    assert sorted(value for rows in read for value in rows) == sorted([*range(100)] * 2)


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    entry = WorkspaceEntry.of(SourceOptions(path=str(tmp_path / "mill")), make=True)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(100)
        raise OSError("the input ends here")

    with entry.journals() as broker:
        with pytest.raises(OSError, match="the input ends here"):
            write_journal_files(
                broker,
                failing(),
                schema=ROWS,
                partitioner=RoundRobinPartitioner(1),
                bytes_target=1,
            )
        folder = broker.adoption_folder()

        assert os.listdir(folder) == []


def test_nulls_where_the_journal_has_none_are_refused() -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)])

    with pytest.raises(SchemaMismatch, match="'n' has 1 nulls"):
        write_journal_files(
            MemoryBroker(),
            [pa.record_batch({"n": pa.array([1, None])})],
            schema=strict,
            partitioner=RoundRobinPartitioner(1),
            bytes_target=1,
        )
