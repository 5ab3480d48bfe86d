"""Writes the answer of a query as Parquet files, one for each map output.

Every try of a task writes to a name of its own, and the driver moves the files of the tries that
count. Invariant: a file is made of exactly one map output, and its rows are those of the answer.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.config import Config
from millrace.errors import StorageError, UnsupportedType, UserError
from millrace.execute.results.publish_bucket import BucketDraft
from millrace.execute.results.publish_folder import Draft
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TASK_BYTES_MAX, TaskRunner, TaskTry, TaskWork, never_stop
from millrace.faults import fault
from millrace.identity.versions import check_versions, versions
from millrace.ids import FolderId
from millrace.scan.splits import share_out
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.reports import ParquetWritten
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors
from millrace.text import counted
from millrace.transport.agent.agent_addresses import known_agents

COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")
_REPORT: Final = pa.schema(
    [("output", pa.int64()), ("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteJob:
    """What every task needs to know."""

    manifest: Manifest
    folders: Folders
    addresses: Mapping[FolderId, str]
    config: Config
    versions: Mapping[str, str]
    into: str
    access: StorageOptions
    compression: str


def draft_at(path: str, mode: str, options: StorageOptions, config: Config) -> Draft | BucketDraft:
    """A result on its way to a folder on a disk or in a bucket."""
    if is_remote(path):
        return BucketDraft(path, mode, options, config)
    if options != StorageOptions():
        raise UserError(f"storage_options for {path}\n  to fix: leave them out, for a folder")
    return Draft(path, mode)


def check_parquet(schema: pa.Schema, compression: str) -> None:
    """Raise if these columns cannot be written as Parquet, or not so."""
    if compression not in COMPRESSIONS:
        raise UserError(f"compression is {compression!r}\n  to fix: use {', '.join(COMPRESSIONS)}")
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
) -> ParquetWritten:
    """Write the rows of an answer in tasks, and publish the files."""
    chosen = answer.manifest.chosen
    outputs = [n for n, choice in enumerate(chosen) if choice.rows] or [0]
    job = _WriteJob(
        manifest=answer.manifest,
        folders=workspace.folders,
        addresses=known_agents(workspace.store),
        config=workspace.config,
        versions=versions(),
        into=draft.tasks,
        access=draft.options,
        compression=compression,
    )
    shares = share_out(
        [chosen[n].bytes for n in outputs],
        slots=runner.slots(),
        bytes_max=TASK_BYTES_MAX,
        runners_max=workspace.config.spark_tasks_max,
    )
    tasks = _write_tasks(job, [[outputs[n] for n in share] for share in shares])
    title = f"write_parquet({os.path.basename(draft.target)}), {counted(len(outputs), 'file')}"
    table = runner.run(tasks, len(shares), _REPORT, title=title, watch=never_stop)
    files = table.sort_by("output").to_pylist()
    assert [row["output"] for row in files] == outputs, "each output is written once"
    fault("results.driver.after_tasks")
    names = {row["file"]: draft.final_name(number) for number, row in enumerate(files)}
    draft.publish(names, sync=workspace.config.sync)
    return ParquetWritten(
        path=draft.target,
        files=len(files),
        rows=sum(row["rows"] for row in files),
        bytes=sum(row["bytes"] for row in files),
    )


def _write_tasks(job: _WriteJob, shares: Sequence[Sequence[int]]) -> TaskWork:
    def run(this: TaskTry) -> Iterator[pa.RecordBatch]:
        check_versions(job.versions)
        agents = job.folders.agents(job.config, job.addresses.get)
        try:
            stores = job.folders.stores(job.config)
            shuffle = Shuffle(manifest=job.manifest, stores=stores, remote=agents)
            for number in shares[this.number]:
                row = _write_output(job, shuffle.of_outputs([number]), number)
                yield pa.RecordBatch.from_pylist([row], _REPORT)
        finally:
            agents.close()

    return run


def _write_output(job: _WriteJob, output: Shuffle, number: int) -> dict[str, Any]:
    """Write one map output to a file that no other try writes to."""
    name = f"{number:05}-{secrets.token_hex(8)}.parquet"
    rows = (batch for number in range(output.partitions) for batch in output.batches(number))
    if is_remote(job.into):
        count, size = _write_object(job, rows, output.schema, name)
    else:
        count, size = _write_file(os.path.join(job.into, name), rows, output.schema, job)
    fault("results.task.after_write")
    return {"output": number, "file": name, "rows": count, "bytes": size}


def _write_object(
    job: _WriteJob, rows: Iterable[pa.RecordBatch], schema: pa.Schema, name: str
) -> tuple[int, int]:
    """Write a file on this host's disk, then put it into the bucket; its rows and bytes."""
    with scratch_folder(own_folder(), "results-") as folder:
        path = os.path.join(folder, name)
        count, size = _write_file(path, rows, schema, job)
        with pa.memory_map(path) as file:
            into = remote_path(job.into, job.access, job.config)
            into.below(name).put(file.read_buffer())
    return count, size


def _write_file(
    path: str, rows: Iterable[pa.RecordBatch], schema: pa.Schema, job: _WriteJob
) -> tuple[int, int]:
    if not os.path.isdir(os.path.dirname(path)):
        raise StorageError(
            f"folder {os.path.dirname(path)} is not there on host {socket.gethostname()}\n"
            "  to fix: write to a disk that all hosts share; or the write was ended meanwhile"
        )
    with storage_errors(f"writing {path} on host {socket.gethostname()}"):
        return _write_rows(path, rows, schema, job), os.path.getsize(path)


def _write_rows(
    path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, job: _WriteJob
) -> int:
    count = 0
    with pq.ParquetWriter(path, schema, compression=job.compression) as writer:
        for group in _row_groups(batches, job.config.parquet_row_group_bytes):
            writer.write_table(group, row_group_size=max(1, group.num_rows))
            count += group.num_rows
    return count


def _row_groups(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
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
