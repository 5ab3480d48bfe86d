"""Whole files of rows that tasks write and a broker adopts as segments.

A file is an Arrow IPC stream of the user's columns alone: its rows get their offsets when it is
adopted, so tasks write at the same time and no numbers are needed beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.journal.core import row_format
from millrace.journal.core.values import FileRange, SegmentFile
from millrace.storage import modes
from millrace.storage.store import storage_errors


def write_file(
    path: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    config: Config | None = None,
    sync: bool = True,
) -> SegmentFile:
    """Write rows of a journal with this schema to a new file, to be adopted.

    Args:
        path: in the broker's `adoption_folder()`; must not exist.
        batches: rows in order.
        schema: the journal's.
        config: limits; the size of a range is taken from it.
        sync: flush to the device here, in the task, so that adopting has little left to wait for.
    """
    target = (config or Config()).journal_range_bytes_target
    stored = pa.schema([pa.field(field.name, field.type) for field in schema])
    ranges: list[FileRange] = []
    with storage_errors(f"writing {path}"):
        modes.make_folders(os.path.dirname(path))
        with open(path, "xb", opener=modes.opener) as file:
            position = file.write(stored.serialize())
            for batch in batches:
                for piece in _pieces(row_format.conform(batch, schema, where=path), target):
                    message = piece.serialize()
                    file.write(message)
                    made = FileRange(
                        position=position,
                        bytes=message.size,
                        rows=piece.num_rows,
                        checksum=xxhash.xxh3_64_hexdigest(message),
                    )
                    ranges.append(made)
                    position += message.size
            if sync:
                file.flush()
                os.fsync(file.fileno())
    return SegmentFile(path=path, schema=schema, bytes=position, ranges=tuple(ranges))


def _pieces(batch: pa.RecordBatch, target: int) -> Iterable[pa.RecordBatch]:
    step = max(1, target * batch.num_rows // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, step):
        yield batch.slice(begin, step)
