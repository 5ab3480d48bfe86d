"""The record of a sink's files: one row for each, written by the transaction that commits it. Pure.

Files up to the committed offset of the group `named` have their final name. A dead worker may have
left files beyond it under the name they were written with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from millrace.names import shown
from millrace.pipeline.core.hops import step_root
from millrace.storage import documents


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """One row: a file that holds the rows made of a range of offsets."""

    folder: str
    name: str
    unfinished: str
    """The name it was written under, within the folder."""
    rows: int
    bytes: int
    checksum: str
    """XXH3-64 of its bytes, 16 hexadecimal digits."""
    journal_id: int
    """The journal of its input rows, from offset `first` up to `next`."""
    first: int
    next: int


SCHEMA: Final = pa.schema(
    [
        pa.field("folder", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("unfinished", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("journal_id", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
    ]
)


_PART: Final = r"part-\d{5,}-\d{20}-\d{20}"
_FOLDER: Final = r"[^/.\0][^/\0]*=[^/\0]+/"
_NAME: Final = re.compile(rf"(?:{_FOLDER})*{_PART}\.parquet")
_UNFINISHED: Final = re.compile(rf"\.millrace/{_PART}-[0-9a-f]{{16}}\.unfinished")


def file_name(journal_id: int, first: int, next_: int) -> str:
    """The name of the file with the rows of these offsets, without its ending."""
    return f"part-{journal_id:05}-{first:020}-{next_:020}"


def to_rows(files: Sequence[RecordedFile]) -> pa.RecordBatch:
    """Files as rows of the record."""
    return pa.RecordBatch.from_pylist([asdict(file) for file in files], schema=SCHEMA)


def from_rows(rows: pa.Table, *, journal: str) -> list[RecordedFile]:
    """Rows of the record as files; refuses a name that no sink gives, or outside the folder."""
    with documents.decoding(f"journal {journal}", "the record of a sink", "reset the sink"):
        return [_checked(RecordedFile(**row)) for row in rows.to_pylist()]


def _checked(file: RecordedFile) -> RecordedFile:
    if not _NAME.fullmatch(file.name) or not _UNFINISHED.fullmatch(file.unfinished):
        raise ValueError(
            f"a file is named {shown(file.name)}, before that {shown(file.unfinished)}"
        )
    return file


def named_group(job: str, sink: str) -> str:
    """The group whose committed offset is the end of the files that have their final name."""
    return f"{step_root(job, sink)}/named"


def keeping_group(job: str, sink: str) -> str:
    """A group that stays at the record's beginning, so that retention leaves the record alone."""
    return f"{step_root(job, sink)}/kept"
