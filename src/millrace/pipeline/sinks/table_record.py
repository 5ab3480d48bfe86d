"""The record of a table sink's files: one row for each, beside the offset that it covers. Pure.

The table says up to which offset of this record its files are committed. The group `named` follows
it, and the journal of commits has a row for each commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from millrace.pipeline.core.hops import step_root
from millrace.pipeline.core.job_events import SinkCommit
from millrace.storage import documents
from millrace.tables.table_port import TableFile

SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("about", pa.string(), nullable=False),
        pa.field("journal_id", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
    ]
)
"""The rows are made of the offsets from `first` up to `next` of the journal `journal_id`."""
COMMITS_SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("run", pa.int64(), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tries", pa.int64(), nullable=False),
    ]
)


def file_rows(
    files: Sequence[TableFile], *, journal_id: int, first: int, next_: int
) -> pa.RecordBatch:
    """Files as rows of the record."""
    common = {"journal_id": journal_id, "first": first, "next": next_}
    return pa.RecordBatch.from_pylist([asdict(file) | common for file in files], schema=SCHEMA)


def files_of(rows: pa.Table, *, journal: str) -> list[TableFile]:
    """Rows of the record as files."""
    names = ["path", "rows", "bytes", "about"]
    with documents.decoding(f"journal {journal}", "the record of a sink", "reset the sink"):
        return [TableFile(**row) for row in rows.select(names).to_pylist()]


def commit_row(commit: SinkCommit) -> pa.RecordBatch:
    """A commit as a row of the journal of commits."""
    row: dict[str, Any] = asdict(commit)
    del row["sink"]
    return pa.RecordBatch.from_pylist([row], schema=COMMITS_SCHEMA)


def commits_of(rows: pa.Table, sink: str) -> list[SinkCommit]:
    """Rows of the journal of commits."""
    return [SinkCommit(sink=sink, **row) for row in rows.to_pylist()]


def commits_journal(job: str, sink: str) -> str:
    """The journal of a sink's commits to its table."""
    return f"{step_root(job, sink)}/commits"
