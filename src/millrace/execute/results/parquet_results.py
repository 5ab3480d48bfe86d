"""A folder of Parquet files that the tasks of a query's last stage write: its begin and its end.

Invariant: a file has rows of exactly one task, and files are in the order of the tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.config import Config
from millrace.errors import UnsupportedType, UserError
from millrace.execute.results.parquet_work import ParquetTarget
from millrace.execute.results.partition_files import TaskFile
from millrace.execute.results.publish_bucket import BucketDraft
from millrace.execute.results.publish_folder import Draft, local_target
from millrace.execute.results.write_notes import WriteNote
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.faults import fault
from millrace.scan.partition_paths import check_partition_by
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import ParquetWritten
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import StorageOptions

COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")


@contextmanager
def draft_at(
    path: str, mode: str, options: StorageOptions, workspace: ShuffleWorkspace
) -> Iterator[Draft | BucketDraft]:
    """A result on its way to a folder on a disk or in a bucket.

    If a write of this workspace to this folder was cut off, files of its finished tasks are there.
    """
    config = workspace.config
    where = path if is_remote(path) else local_target(path)
    note = WriteNote.find(workspace.store, ["write_parquet", where])
    draft: Draft | BucketDraft | None = None
    try:
        draft = _draft(path, mode, options, config, note.token)
        if note.is_known and draft.token == note.token and not draft.has_files():
            # Its writer published, or began to: what its finished tasks name is not there now.
            draft.close()
            note = note.renewed()
            draft = _draft(path, mode, options, config, note.token)
        with draft:
            yield draft
    finally:
        if draft is None or (not draft.left and draft.token == note.token):
            note.finish()


def _draft(
    path: str, mode: str, options: StorageOptions, config: Config, token: str
) -> Draft | BucketDraft:
    if is_remote(path):
        return BucketDraft(path, mode, options, config, token)
    if options != StorageOptions():
        raise UserError(f"storage_options for {path}\n  to fix: leave them out, for a folder")
    return Draft(path, mode, token)


def check_parquet(schema: pa.Schema, compression: str, partition_by: tuple[str, ...]) -> None:
    """Raise if these columns cannot be written as Parquet, or not so."""
    if compression not in COMPRESSIONS:
        raise UserError(f"compression is {compression!r}\n  to fix: use {', '.join(COMPRESSIONS)}")
    check_partition_by("write_parquet()", schema, partition_by)
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise UnsupportedType(
                f"column {field.name!r} cannot be written as Parquet: {error}\n"
                f"  found: {field.type}\n  to fix: turn it into another type first"
            ) from error


def target_in(
    draft: Draft | BucketDraft, schema: pa.Schema, compression: str, partition_by: tuple[str, ...]
) -> ParquetTarget:
    """Where the tasks of a query write, and how."""
    return ParquetTarget(
        into=draft.tasks,
        access=draft.options,
        compression=compression,
        partition_by=partition_by,
        schema=schema,
    )


def publish_files(
    target: ParquetTarget, draft: Draft | BucketDraft, config: Config, answer: Shuffle
) -> ParquetWritten:
    """Publish the files that the tasks of a query wrote: the rows of its answer name them."""
    files: list[TaskFile] = []
    for _, batches in answer.outputs(0):
        rows = (row for batch in batches for row in batch.to_pylist())
        files += sorted((TaskFile(**row) for row in rows), key=lambda file: file.folder)
    if not files and not target.partition_by:
        files = target.write_no_rows(config)
    fault("results.driver.after_tasks")
    names = {
        file.file: os.path.join(file.folder, draft.final_name(number))
        for number, file in enumerate(files)
    }
    draft.publish(names, sync=config.sync)
    return ParquetWritten(
        path=draft.target,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
    )
