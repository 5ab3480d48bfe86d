"""Snapshots of a state: Parquet files in the workspace, and the record that names them.

A file is a large value: backups copy it, checks read it, and `millrace job gc` removes it once no
record refers to it. Invariant: a record is published after its files are synced, so what it names
is whole; the state is a snapshot and the changes from its offset on.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.large import large_values as large
from millrace.pipeline.state.state_rows import KEPT_NUMBER
from millrace.pipeline.state.state_table import RUN_BYTES_MAX, StateTable

SNAPSHOT_ROWS: Final = 1_000_000
"""Rows of a file, at most."""
KEPT_HASH: Final = "_mr_hash"
_FILE: Final = "file"
_GIVEN: Final = (
    pa.field("offset", pa.int64()),
    pa.field("next_number", pa.int64()),
    pa.field("files", pa.int64()),
    pa.field("rows", pa.int64()),
    pa.field("at_us", pa.int64()),
)
SNAPSHOT_SCHEMA: Final = pa.schema([*_GIVEN, pa.field(_FILE, large.BYTES)])
"""One row for each file of a snapshot; it has the changes below `offset` of their journal."""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The last snapshot of a unit."""

    rows: pa.RecordBatch
    first: int
    """The offset of its first row in the record of snapshots."""

    @property
    def offset(self) -> int:
        """Where the changes that it does not have begin."""
        offset: int = self.rows.column("offset")[0].as_py()
        return offset

    @property
    def next_number(self) -> int:
        """The number that the next row of the state gets."""
        number: int = self.rows.column("next_number")[0].as_py()
        return number


def write_snapshot(
    kept: StateTable, *, offset: int, at_us: int, workspace: str, folder: str
) -> pa.RecordBatch:
    """Write a state to files; the rows for the record of snapshots."""
    files, counts = [], []
    for piece in _pieces(kept):
        buffer = io.BytesIO()
        pq.write_table(piece, buffer)
        files.append(buffer.getvalue())
        counts.append(piece.num_rows)
    total = len(files)
    given = pa.RecordBatch.from_arrays(
        [
            pa.array([offset] * total, pa.int64()),
            pa.array([kept.next_number] * total, pa.int64()),
            pa.array([total] * total, pa.int64()),
            pa.array(counts, pa.int64()),
            pa.array([at_us] * total, pa.int64()),
            pa.array(files, pa.binary()),
        ],
        schema=pa.schema([*_GIVEN, pa.field(_FILE, pa.binary())]),
    )
    return large.store_large(given, [_FILE], workspace=workspace, folder=folder)


def last_snapshot(broker: Broker, journal: str) -> SnapshotRecord | None:
    """The last snapshot of a unit, if there is one."""
    offset, parts = int(broker.start_offset(journal)), list[pa.Table]()
    while True:
        fetched = broker.read(journal, offset)
        if fetched.num_rows:
            parts.append(fetched.stored())
        if fetched.next_offset == offset:
            break
        offset = int(fetched.next_offset)
    if not parts:
        return None
    stored = pa.concat_tables(parts)
    files = stored["files"][stored.num_rows - 1].as_py()
    last = stored.slice(stored.num_rows - files).combine_chunks()
    first = last[OFFSET][0].as_py()
    return SnapshotRecord(last.select(SNAPSHOT_SCHEMA.names).to_batches()[0], first)


def snapshot_files(record: SnapshotRecord, workspace: str) -> Iterator[pa.Table]:
    """The rows of each file of a snapshot, with their numbers and hashes."""
    for number in range(record.rows.num_rows):
        one = large.fetch(record.rows.slice(number, 1), [_FILE], workspace)
        yield pq.read_table(io.BytesIO(one.column(_FILE)[0].as_py()))


def load_snapshot(kept: StateTable, record: SnapshotRecord, workspace: str) -> None:
    """Add the rows of a snapshot to an empty state: many at once, since each run is sorted."""
    batches, size = list[pa.RecordBatch](), 0
    for table in snapshot_files(record, workspace):
        if batches and size + table.nbytes > RUN_BYTES_MAX:
            _load(kept, batches)
            batches, size = [], 0
        batches += table.combine_chunks().to_batches()
        size += table.nbytes
    _load(kept, batches)
    kept.next_number = record.next_number


def _load(kept: StateTable, batches: list[pa.RecordBatch]) -> None:
    if batches:
        rows = [batch.select(kept.schema.names).cast(kept.schema) for batch in batches]
        numbers = [batch.column(KEPT_NUMBER).to_numpy() for batch in batches]
        hashes = [batch.column(KEPT_HASH).to_numpy() for batch in batches]
        kept.load(pa.concat_batches(rows), np.concatenate(numbers), np.concatenate(hashes))


def _pieces(kept: StateTable) -> Iterator[pa.Table]:
    for rows, numbers, hashes in kept.snapshot():
        whole = pa.table(
            [*rows.columns, pa.array(numbers), pa.array(hashes)],
            names=[*rows.schema.names, KEPT_NUMBER, KEPT_HASH],
        )
        for begin in range(0, whole.num_rows, SNAPSHOT_ROWS):
            yield whole.slice(begin, SNAPSHOT_ROWS)
