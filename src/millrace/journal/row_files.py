"""Files of rows that other processes write and a broker adopts as segments.

A whole file is an Arrow IPC stream of the user's columns alone. An open file has messages of many
journals one behind the other, and its writer adds to it. Rows get their offsets when they are
adopted, so processes write at the same time and no numbers are needed beforehand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.errors import DataLost, FormatError, UserError
from millrace.journal.core import row_format
from millrace.journal.core.values import FileRange, SegmentFile
from millrace.storage import modes
from millrace.storage.store import storage_errors

ADOPTED: Final = "adopted"
"""The folder of files that other processes write, within the folder of the journals."""
_DIRECT_NAME: Final = re.compile(rf"{ADOPTED}/[0-9a-f]{{32}}\.ipc")


@dataclass(frozen=True, slots=True)
class RowMessage:
    """Rows as they are written to a file."""

    data: pa.Buffer
    rows: int

    def at(self, position: int) -> FileRange:
        """The range of a file that begins here."""
        return FileRange(
            position=position,
            bytes=self.data.size,
            rows=self.rows,
            checksum=xxhash.xxh3_64_hexdigest(self.data),
        )


@dataclass(frozen=True, slots=True)
class BesideRows:
    """What is given beside the rows of an append, one for each row."""

    keys: pa.Array | None = None
    timestamps: pa.Array | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is any of it."""
        return self.keys is not None or self.timestamps is not None

    @property
    def nbytes(self) -> int:
        """The bytes of it."""
        return sum(given.nbytes for given in (self.keys, self.timestamps) if given is not None)

    def before(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put it before conformed rows."""
        if not self.is_given:
            return batch
        keys = row_format.check_keys(self.keys, batch.num_rows)
        times = row_format.check_timestamps(self.timestamps, batch.num_rows)
        return row_format.keyed_rows(batch, keys, times)


NOTHING_BESIDE: Final = BesideRows()


def row_messages(
    rows: pa.RecordBatch | pa.Table,
    schema: pa.Schema,
    target: int,
    *,
    where: str,
    beside: BesideRows = NOTHING_BESIDE,
) -> Iterator[RowMessage]:
    """Rows of a journal with this schema, in messages of about a size."""
    batch = beside.before(row_format.conform(rows, schema, where=where))
    step = max(1, target * batch.num_rows // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, step):
        piece = batch.slice(begin, step)
        yield RowMessage(piece.serialize(), piece.num_rows)


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
                for message in row_messages(batch, schema, target, where=path):
                    file.write(message.data)
                    ranges.append(message.at(position))
                    position += message.data.size
            if sync:
                file.flush()
                os.fsync(file.fileno())
    return SegmentFile(path=path, schema=schema, bytes=position, ranges=tuple(ranges))


def check_direct_name(file: SegmentFile) -> None:
    """Refuse a file that is not named as those in the folder of the journals."""
    if not _DIRECT_NAME.fullmatch(file.path):
        raise UserError(
            f"file {file.path!r} cannot be adopted from where it lies\n"
            f"  to fix: write it to the folder {ADOPTED} of the journals"
        )


def checked_open(file: SegmentFile, size: int | None) -> SegmentFile:
    """An open file that has all that is referred to; others are refused."""
    check_direct_name(file)
    if size is None or size < file.bytes:
        raise FormatError(
            f"file {file.path} does not have what is to be adopted\n"
            f"  expected: {file.bytes} bytes, found: {'no file' if size is None else size}\n"
            "  to fix: write the rows again, or send them"
        )
    return file


def check_length(file: SegmentFile, size: int | None) -> None:
    """Refuse a whole file that is not as it was written."""
    if size != file.bytes:
        actual = "it is gone" if size is None else f"{size} bytes"
        raise DataLost(
            f"file {file.path} to adopt is not as it was written\n"
            f"  expected: {file.bytes} bytes, found: {actual}\n  to fix: write it again"
        )
