"""Puts the rows of small files of a Delta table together in larger ones; no row changes.

Invariant: a commit replaces files that the table has at that moment by one with their rows, in the
same partition. Files that another writer took meanwhile are left to it.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.limits import MIB
from millrace.tables.delta.delta_commits import DeltaCommits
from millrace.tables.delta.delta_files import DeltaFileWriter
from millrace.tables.delta.delta_log import Action, FileList, TableState, file_key, removal
from millrace.tables.delta.file_rewrites import FileReading
from millrace.tables.delta.table_features import check_writable
from millrace.tables.gathered_rows import row_groups
from millrace.tables.table_port import TableFile

FILE_BYTES: Final = 128 * MIB
"""The size of the files that are made, unless it is said."""
_SMALL: Final = 0.75
"""A file is small below this part of the size that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCompacted:
    """What `optimize_delta` did."""

    table: str
    version: int | None
    """The version of the table that has the larger files; None if there was nothing to do."""
    removed: int
    """Files that are gone from that version."""
    added: int
    """Files with their rows."""
    bytes: int


@dataclass(frozen=True, slots=True)
class _Together:
    """Files of one partition, and the file with their rows."""

    adds: tuple[Action, ...]
    file: TableFile


class SmallFiles:
    """See `TableUpkeep`: puts small files together when there are so many."""

    def __init__(self, commits: DeltaCommits, config: Config, at: int) -> None:
        self._commits, self._config, self._at = commits, config, at
        self._count: int | None = None
        """As far as this process knows; those of others are seen by the next run."""

    def after_commit(self, files: int) -> None:
        """See `TableUpkeep.after_commit`."""
        if self._count is None:
            state = self._commits.look()
            bins = _bins(FileList(self._commits.folder).at(state.version), FILE_BYTES)
            self._count = sum(map(len, bins))
        else:
            self._count += files
        if self._count >= self._at:
            self._count = 0
            compact(self._commits, self._config, FILE_BYTES)


def compact(commits: DeltaCommits, config: Config, file_bytes: int) -> DeltaCompacted:
    """Make larger files of small ones, in commits of about `Config.job_commit_bytes`."""
    state = commits.look()
    check_writable(state, who=commits.who, where=commits.folder.uri)
    files = FileList(commits.folder)
    reading = FileReading(state, commits.folder, commits.options, config)
    writer = DeltaFileWriter(commits.folder, state.metadata, reading.schema, who=commits.who)
    done: list[_Together] = []
    waiting: list[_Together] = []
    version: int | None = None
    bins = _bins(files.at(state.version), file_bytes)
    for number, adds in enumerate(bins):
        rows = itertools.chain.from_iterable(reading.all_rows(add) for add in adds)
        name = f"part-{number:05}-{secrets.token_hex(8)}"
        partition = adds[0].get("partitionValues") or {}
        groups = row_groups(rows, reading.schema, config)
        waiting.append(_Together(adds, writer.write_as(groups, name, partition)))
        size = sum(together.file.bytes for together in waiting)
        if number == len(bins) - 1 or size >= config.job_commit_bytes:
            made = _commit(waiting, commits, files, state)
            if made is not None:
                version, committed = made
                done += committed
            waiting = []
    return DeltaCompacted(
        table=commits.folder.uri,
        version=version,
        removed=sum(len(together.adds) for together in done),
        added=len(done),
        bytes=sum(together.file.bytes for together in done),
    )


def _bins(adds: Sequence[Action], file_bytes: int) -> list[tuple[Action, ...]]:
    """Small files of one partition, as many as make a file of that size."""
    bins: list[tuple[Action, ...]] = []
    small = [add for add in adds if add["size"] < _SMALL * file_bytes]
    small.sort(key=_partition)
    for _, group in itertools.groupby(small, key=_partition):
        gathered: list[Action] = []
        for add in group:
            if gathered and sum(one["size"] for one in gathered) + add["size"] > file_bytes:
                bins.append(tuple(gathered))
                gathered = []
            gathered.append(add)
        bins.append(tuple(gathered))
    return [files for files in bins if len(files) > 1]


def _partition(add: Action) -> str:
    return json.dumps(add.get("partitionValues") or {}, sort_keys=True)


def _commit(
    waiting: Sequence[_Together], commits: DeltaCommits, files: FileList, before: TableState
) -> tuple[int, list[_Together]] | None:
    """Commit those whose files are all there still; the others are left as they are."""
    chosen: list[_Together] = []

    def actions(state: TableState) -> list[Action] | None:
        there = {file_key(add) for add in files.at(state.version)}
        same = state.metadata == before.metadata
        chosen[:] = [
            together
            for together in waiting
            if same and all(file_key(add) in there for add in together.adds)
        ]
        now_ms = time.time_ns() // 1_000_000
        removed: list[Action] = [
            {"remove": removal(add, now_ms) | {"dataChange": False}}
            for together in chosen
            for add in together.adds
        ]
        added = [json.loads(together.file.about)["add"] for together in chosen]
        return [*removed, *({"add": add | {"dataChange": False}} for add in added)] or None

    info = {"operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"}}
    made = commits.commit_actions(actions, info, place=None)
    kept = {together.file.path for together in chosen} if made is not None else set[str]()
    commits.folder.remove([one.file.path for one in waiting if one.file.path not in kept])
    return None if made is None or made.version is None else (made.version, chosen)
