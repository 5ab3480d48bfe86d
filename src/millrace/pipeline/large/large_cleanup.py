"""Removes large values that no row refers to any more, after journals were truncated.

Safe beside running workers. A row stays in its input journal until that journal is truncated, so
references are gathered again until no journal was truncated in between. A value that a step stores
again gets a new file time before its row is published. A file is renamed before its time is read
for the last time, so no step can rely on a file that is being removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import Conflict, JournalUnknown, OffsetOutOfRange
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import JournalId
from millrace.pipeline.large import large_values as large
from millrace.storage.store import storage_errors


@dataclass(frozen=True, slots=True)
class LargeRemoved:
    """What was removed."""

    files: int
    bytes: int


def remove_unneeded(
    broker: Broker,
    workspace: str,
    job: str,
    step: str | None = None,
    config: Config | None = None,
) -> LargeRemoved:
    """Remove the values of a job that no row in any journal refers to and that are not new.

    Args:
        broker: serves all journals whose rows may refer to the values.
        workspace: the folder of the workspace.
        job: the job that stored the values.
        step: the step that stored the values; all steps by default.
        config: `unfinished_grace` says what is not new.
    """
    config = config or Config()
    before = time.time() - ms(config.unfinished_grace) / 1000
    folder = f"{large.ROOT}/{job}" if step is None else large.folder_of(job, step)
    # Listed before references are gathered: a file that is not there yet is none of ours.
    old = sorted(_old_files(workspace, folder, before))
    _remove_drafts(workspace, [path for path in old if path.endswith(large.DRAFT)])
    values = [path for path in old if not path.endswith(large.DRAFT)]
    if not values:
        return LargeRemoved(0, 0)
    names = pa.array([path.removesuffix(large.GONE) for path in values], pa.string())
    referenced = referenced_paths(broker, folder + "/", config.job_reference_rounds_max)
    needed = pc.is_in(names, value_set=referenced).to_pylist()
    gone = [
        _remove(workspace, path, before)
        for path, is_needed in zip(values, needed, strict=True)
        if not is_needed
    ]
    for path, is_needed in zip(values, needed, strict=True):
        if is_needed and path.endswith(large.GONE):
            _put_back(os.path.join(workspace, path))
    sizes = [size for size in gone if size is not None]
    return LargeRemoved(len(sizes), sum(sizes))


def _old_files(workspace: str, folder: str, before: float) -> Iterator[str]:
    for above, _, names in os.walk(os.path.join(workspace, folder)):
        for name in names:
            path = os.path.join(above, name)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime < before:
                    yield os.path.relpath(path, workspace)


def _remove_drafts(workspace: str, drafts: list[str]) -> None:
    for draft in drafts:
        with storage_errors(f"removing {draft}"), contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(workspace, draft))


def _remove(workspace: str, path: str, before: float) -> int | None:
    """Remove a file, unless a step has stored its value again; returns the removed bytes."""
    full = os.path.join(workspace, path)
    aside = full if path.endswith(large.GONE) else full + large.GONE
    with storage_errors(f"removing {full}"):
        try:
            if os.stat(full).st_mtime >= before:
                return None
            if aside != full:
                os.rename(full, aside)
            fault("large.remove.after_move")
            status = os.stat(aside)
        except FileNotFoundError:
            return None
        if status.st_mtime >= before:
            _put_back(aside)
            return None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        return status.st_size


def _put_back(aside: str) -> None:
    """Give a file its name back; a file written again in between has the same content."""
    with storage_errors(f"moving {aside} back"), contextlib.suppress(FileNotFoundError):
        os.rename(aside, aside.removesuffix(large.GONE))


def referenced_paths(broker: Broker, below: str, rounds_max: int) -> pa.Array:
    """The paths below a folder that rows of any journal refer to."""
    paths: list[pa.Array] = [pa.array([], pa.string())]
    read: dict[JournalId, int] = {}
    for _ in range(rounds_max):
        starts = _starts(broker)
        for (id_, name), start in starts.items():
            read[id_] = _gather(broker, name, max(start, read.get(id_, 0)), below, paths)
        if _starts(broker) == starts:
            return pa.concat_arrays(paths).unique()
    raise Conflict(
        "large values were not looked through: journals are being truncated all the time\n"
        "  to fix: try again later"
    )


def _starts(broker: Broker) -> dict[tuple[JournalId, str], int]:
    """The start offsets of the journals whose rows may refer to values."""
    starts: dict[tuple[JournalId, str], int] = {}
    for info in broker.list():
        if large.references(info.schema):
            with contextlib.suppress(JournalUnknown):
                starts[info.id, info.name] = broker.start_offset(info.name)
    return starts


def _gather(broker: Broker, name: str, offset: int, below: str, gathered: list[pa.Array]) -> int:
    """Add the paths in rows from an offset on; returns the next offset to read."""
    while True:
        try:
            fetched = broker.read(name, offset, isolation="raw")
        except (JournalUnknown, OffsetOutOfRange):
            # Deleted or truncated meanwhile, which makes for another round.
            return offset
        for batch in fetched.batches:
            for column in large.references(fetched.schema):
                paths = pc.struct_field(batch.column(column), "path").unique()
                gathered.append(paths.filter(pc.starts_with(paths, below)))
        if fetched.next_offset == offset:
            return offset
        offset = fetched.next_offset
