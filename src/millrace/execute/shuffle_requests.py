"""Checks the arguments of a shuffle, and chooses the partition count and bounds.

Invariant: wrong arguments are refused here, before a task runs. Bounds that were sampled once for a
request are used again, so that a resumed run cuts at the same values.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from millrace.config import reduce_partitions
from millrace.durations import ms
from millrace.errors import UserError
from millrace.execute.map_task import Reuse
from millrace.execute.shuffle_run import ShuffleRequest, shuffle_files
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_runner import TaskRunner
from millrace.keys import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    sample_bounds,
)
from millrace.scan.input_files import Paths
from millrace.scan.sample import sample
from millrace.scan.source import FileSource, Listing, open_source
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import storage_options

KINDS: Final = ("hash", "range", "round_robin", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleArguments:
    """How rows are given to partitions: the user's arguments."""

    keys: str | Sequence[str] | None
    partitions: int | None
    partitioner: str | Partitioner | Callable[[pa.RecordBatch], Any]
    bounds: pa.Table | Sequence[Any] | None
    version: str | None
    reuse: Reuse

    def key_list(self) -> list[str]:
        """The keys as a list."""
        if self.keys is None:
            return []
        return [self.keys] if isinstance(self.keys, str) else list(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are read: the user's arguments."""

    format: str | None
    schema: pa.Schema | None
    options: Mapping[str, Any] | None
    checksum: bool
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def given(self) -> list[str]:
        """Names of those that were given."""
        values = {"format": self.format, "schema": self.schema, "options": self.options}
        values["storage_options"] = self.storage_options
        return [name for name, value in values.items() if value is not None]


def shuffle_paths(
    runner: TaskRunner,
    workspace: ShuffleWorkspace,
    paths: Paths,
    arguments: ShuffleArguments,
    files: FileOptions,
) -> Shuffle:
    """Check the arguments for a shuffle of files, and run it."""
    check_reuse(arguments.reuse)
    listing = Listing(
        now_ms=time.time_ns() // 1_000_000,
        recent_ms=ms(workspace.config.recent_change),
        by_content=files.checksum,
    )
    source = open_source(
        paths,
        listing,
        format=files.format,
        schema=files.schema,
        options=files.options,
        access=storage_options(files.storage_options),
    )
    if source.timestamps:
        raise UserError(
            "files of folders that are partitioned by a timestamp cannot be shuffled as they are\n"
            f"  found: column {min(source.timestamps)!r}, whose meaning depends on a time zone\n"
            "  to fix: read them with ws.read_parquet or its like, and use repartition"
        )
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return _of_files(runner, workspace, source, arguments, [_full(os.fspath(p)) for p in given])


def _full(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def check_reuse(reuse: object) -> None:
    """Raise if `reuse=` has no such value."""
    if not isinstance(reuse, bool) and reuse != "verified":
        raise UserError(f"reuse is {reuse!r}\n  to fix: use True, False or 'verified'")


def _of_files(
    runner: TaskRunner,
    workspace: ShuffleWorkspace,
    source: FileSource,
    arguments: ShuffleArguments,
    given: Sequence[str],
) -> Shuffle:
    config = workspace.config
    count = arguments.partitions
    if count is None:
        count = reduce_partitions(config, source.bytes)
    arguments = replace(arguments, partitions=count)
    choices: dict[str, Any] = {}
    if needs_bounds(arguments):
        request = {"inputs": list(given), "keys": arguments.key_list(), "partitions": count}
        check_keys(arguments, source.schema)
        bounds = _recorded_bounds(workspace, request) if arguments.reuse else None
        if bounds is None:
            bounds = sample_bounds(
                sample(source, arguments.key_list(), config), arguments.key_list(), count
            )
        choices = {"request": request, "bounds": _encode_table(bounds)}
        arguments = replace(arguments, bounds=bounds)
    by = make_partitioner(arguments)
    by.check(source.schema)
    first = source.shapes[0].file.path
    plan = f"scan {source.format} {first} ({len(source.shapes)} files)\nexchange {by.describe()}"
    return shuffle_files(
        runner,
        workspace,
        source,
        ShuffleRequest(partitioner=by, reuse=arguments.reuse, plan=plan, choices=choices),
    )


def make_partitioner(arguments: ShuffleArguments) -> Partitioner:
    """The partitioner that the arguments describe."""
    kind = arguments.partitioner
    count = 1 if arguments.partitions is None else arguments.partitions
    if not isinstance(kind, str):
        if callable(kind):
            return CustomPartitioner(kind, count, version=arguments.version)
        if hasattr(kind, "describe"):
            return kind
        raise UserError(
            f"unknown partitioner\n  found: {kind!r}\n"
            f"  to fix: use one of {', '.join(KINDS)}, or a function"
        )
    keys = arguments.key_list()
    if kind in ("hash", "range") and not keys:
        raise UserError(f"a {kind} shuffle needs keys\n  to fix: give keys= the column or columns")
    if kind in ("round_robin", "broadcast") and keys:
        raise UserError(
            f"a {kind} shuffle has no keys\n  found: keys={keys}\n  to fix: leave it out"
        )
    match kind:
        case "hash":
            return HashPartitioner(keys, count)
        case "range":
            return RangePartitioner(keys, arguments.bounds)
        case "round_robin":
            return RoundRobinPartitioner(count)
        case "broadcast":
            return BroadcastPartitioner(count)
        case _:
            raise UserError(
                f"unknown partitioner\n  found: {kind!r}\n  to fix: use one of {', '.join(KINDS)}"
            )


def needs_bounds(arguments: ShuffleArguments) -> bool:
    """Whether bounds have to be sampled."""
    return (
        arguments.partitioner == "range" and arguments.bounds is None and bool(arguments.key_list())
    )


def check_keys(arguments: ShuffleArguments, schema: pa.Schema) -> None:
    """Let the partitioner's own check speak before rows are sampled by these keys."""
    HashPartitioner(
        arguments.key_list(), 1 if arguments.partitions is None else arguments.partitions
    ).check(schema)


def _recorded_bounds(workspace: ShuffleWorkspace, request: Mapping[str, Any]) -> pa.Table | None:
    """Bounds that an earlier run chose for the same request."""
    for run in reversed(run_catalog.all_runs(workspace.store)):
        choices = run.about.get("choices") or {}
        if choices.get("request") == request:
            return pa.ipc.open_stream(base64.b64decode(choices["bounds"])).read_all()
    return None


def _encode_table(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()
