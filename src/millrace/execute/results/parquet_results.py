"""Writes the answer of a query as Parquet files, one for each map output, or one in each folder.

Every try of a task writes to a name of its own, and the driver moves the files of the tries that
count. Invariant: a file is made of exactly one map output, and its rows are those of the answer.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.config import Config
from millrace.errors import StorageError, UnsupportedType, UserError
from millrace.execute.results.output_tasks import WriteOutput, rows_of_output, write_outputs
from millrace.execute.results.partition_files import TaskFile, by_folders, one_file
from millrace.execute.results.publish_bucket import BucketDraft
from millrace.execute.results.publish_folder import Draft
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_runner import TaskRunner
from millrace.faults import fault
from millrace.scan.partition_paths import check_partition_by
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import ParquetWritten
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors
from millrace.text import counted

COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")
_REPORT: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteJob:
    """What every task needs to know."""

    config: Config
    into: str
    access: StorageOptions
    compression: str
    partition_by: tuple[str, ...]


def draft_at(path: str, mode: str, options: StorageOptions, config: Config) -> Draft | BucketDraft:
    """A result on its way to a folder on a disk or in a bucket."""
    if is_remote(path):
        return BucketDraft(path, mode, options, config)
    if options != StorageOptions():
        raise UserError(f"storage_options for {path}\n  to fix: leave them out, for a folder")
    return Draft(path, mode)


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


def write_files(
    runner: TaskRunner,
    workspace: ShuffleWorkspace,
    answer: Shuffle,
    draft: Draft | BucketDraft,
    compression: str,
    partition_by: tuple[str, ...],
) -> ParquetWritten:
    """Write the rows of an answer in tasks, and publish the files."""
    outputs = [n for n, choice in enumerate(answer.manifest.chosen) if choice.rows]
    if not partition_by and not outputs:
        outputs = [0]  # A file without rows has the columns.
    job = _WriteJob(
        config=workspace.config,
        into=draft.tasks,
        access=draft.options,
        compression=compression,
        partition_by=partition_by,
    )

    def begin() -> WriteOutput:
        return lambda output, number: _write_output(job, output, number)

    title = f"write_parquet({os.path.basename(draft.target)}), {counted(len(outputs), 'output')}"
    files = write_outputs(runner, workspace, answer, outputs, begin, _REPORT, title=title)
    files.sort(key=lambda row: (row["output"], row["folder"]))
    fault("results.driver.after_tasks")
    names = {
        row["file"]: os.path.join(row["folder"], draft.final_name(number))
        for number, row in enumerate(files)
    }
    draft.publish(names, sync=workspace.config.sync)
    return ParquetWritten(
        path=draft.target,
        files=len(files),
        rows=sum(row["rows"] for row in files),
        bytes=sum(row["bytes"] for row in files),
    )


def _write_output(job: _WriteJob, output: Shuffle, number: int) -> list[dict[str, Any]]:
    """Write one map output to files that no other try writes to."""
    begin = f"{number:05}-{secrets.token_hex(8)}"
    if is_remote(job.into):
        files = _write_objects(job, output, begin)
    else:
        files = _write_files(job, output, begin, job.into)
    fault("results.task.after_write")
    return [asdict(file) for file in files]


def _write_objects(job: _WriteJob, output: Shuffle, begin: str) -> list[TaskFile]:
    """Write files on this host's disk, then put them into the bucket."""
    into = remote_path(job.into, job.access, job.config)
    with scratch_folder(own_folder(), "results-") as folder:
        files = _write_files(job, output, begin, folder)
        for written in files:
            with pa.memory_map(os.path.join(folder, written.file)) as file:
                into.below(written.file).put(file.read_buffer())
    return files


def _write_files(job: _WriteJob, output: Shuffle, begin: str, into: str) -> list[TaskFile]:
    if not os.path.isdir(into):
        raise StorageError(
            f"folder {into} is not there on host {socket.gethostname()}\n"
            "  to fix: write to a disk that all hosts share; or the write was ended meanwhile"
        )
    groups = _row_groups(rows_of_output(output), job.config.parquet_row_group_bytes)
    with storage_errors(f"writing into {into} on host {socket.gethostname()}"):
        if not job.partition_by:
            return [one_file(groups, output.schema, into, begin, job.compression)]
        most = job.config.partition_folders_max
        return by_folders(
            groups, output.schema, job.partition_by, into, begin, job.compression, most
        )


def _row_groups(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Batches put together up to about so many bytes, and larger ones cut."""
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in batches:
        rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            gathered.append(batch.slice(begin, rows))
            gathered_bytes += gathered[-1].nbytes
            if gathered_bytes >= size:
                yield pa.Table.from_batches(gathered)
                gathered, gathered_bytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)
