"""The log of a Delta table: its protocol, columns, applications' places, and files at a version.

A version is one JSON file of actions; checkpoints sum up all versions before them. Only what is new
is read when a state is brought up to date, so that costs the same however long the history is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from millrace.errors import DataLost, UserError
from millrace.tables.delta.log_folder import LOG, TableFolder

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-f-]{36}))?\.(parquet|json)"
)
_FILE_ACTIONS: Final = ("add", "remove", "cdc")
_STATE_COLUMNS: Final = ("protocol", "metaData", "txn")
_FILE_COLUMNS: Final = ("add", "remove")
_UNLISTED_MAX: Final = 100
"""So many versions that a listing lacks are looked for one by one."""
Action = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProtocol:
    """What readers and writers of a table have to know."""

    reader: int = 1
    writer: int = 2
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """The columns of a table and its properties."""

    id: str
    fields: tuple[Mapping[str, Any], ...]
    """As in the log: name, type, nullable, metadata."""
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column["name"] for column in self.fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table at a version."""

    version: int
    protocol: TableProtocol
    metadata: TableMetadata
    places: Mapping[str, int]
    """The last transaction version of each application."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    version: int
    names: tuple[str, ...]


def read_state(folder: TableFolder, version: int | None = None) -> TableState | None:
    """The table at a version, or at its last one; None if there is no table."""
    checkpoint, commits = _versions(folder, version)
    if checkpoint is None and not commits:
        return None
    protocol, metadata, places = TableProtocol(), None, dict[str, int]()
    last = checkpoint.version if checkpoint is not None else -1
    sources: list[Iterable[Action]] = []
    sources += [_checkpoint_actions(folder, checkpoint, _STATE_COLUMNS)] if checkpoint else []
    sources += [_commit_actions(folder, number, with_files=False) for number in commits]
    for actions in sources:
        for action in actions:
            protocol, metadata = _applied(action, protocol, metadata, places)
    if metadata is None:
        raise UserError(
            f"{folder.uri} is no Delta table that can be read\n  found: a log without metadata\n"
            "  to fix: restore the missing files of its log"
        )
    return TableState(
        version=commits[-1] if commits else last,
        protocol=protocol,
        metadata=metadata,
        places=places,
    )


def advanced(folder: TableFolder, state: TableState) -> TableState | None:
    """The table at its last version, from what was committed since a state; None if it is gone."""
    while True:
        data = folder.read(commit_name(state.version + 1))
        if data is None:
            if not folder.missing([folder.path(commit_name(state.version))]):
                return state
            return read_state(folder)  # The log was cleaned up: later versions may be behind it.
        places = dict(state.places)
        protocol, metadata = state.protocol, state.metadata
        for action in _parsed(data, with_files=False):
            protocol, changed = _applied(action, protocol, metadata, places)
            assert changed is not None, "metadata is only replaced"
            metadata = changed
        state = replace(
            state, version=state.version + 1, protocol=protocol, metadata=metadata, places=places
        )


def read_files(folder: TableFolder, version: int) -> list[Action]:
    """The add actions of all files of a version, in the order of the log."""
    checkpoint, commits = _versions(folder, version)
    files: dict[tuple[str, str], Action] = {}
    if checkpoint is not None:
        for action in _checkpoint_actions(folder, checkpoint, _FILE_COLUMNS):
            apply_file(action, files)
    for number in commits:
        apply_commit(_commit_actions(folder, number, with_files=True), files)
    return list(files.values())


class FileList:
    """The files of a table at one version after the other; each commit is read once."""

    def __init__(self, folder: TableFolder) -> None:
        """Reads nothing yet."""
        self._folder = folder
        self._version: int | None = None
        self._files: dict[tuple[str, str], Action] = {}

    def at(self, version: int) -> list[Action]:
        """The add actions of all files of a version, which is not below the last one asked for."""
        known, self._version = self._version, None
        if known is None or known > version or not self._go_on(known, version):
            self._files = {file_key(add): add for add in read_files(self._folder, version)}
        self._version = version
        return list(self._files.values())

    def _go_on(self, known: int, version: int) -> bool:
        """Apply the commits behind a version; False if the log was cleaned up meanwhile."""
        for number in range(known + 1, version + 1):
            data = self._folder.read(commit_name(number))
            if data is None:
                return False
            apply_commit(_parsed(data, with_files=True), self._files)
        return True


def apply_commit(given: Iterable[Action], files: dict[tuple[str, str], Action]) -> None:
    """Bring the files of a table up to date: within a commit, removals come first."""
    actions = list(given)
    for kind in ("remove", "add"):
        for action in actions:
            if kind in action:
                apply_file({kind: action[kind]}, files)


def apply_file(action: Action, files: dict[tuple[str, str], Action]) -> None:
    """Bring the files of a table up to date with an action."""
    if action.get("remove") is not None:
        files.pop(file_key(action["remove"]), None)
    elif action.get("add") is not None:
        files[file_key(action["add"])] = action["add"]


def commit_name(version: int) -> str:
    """The file of a version."""
    return f"{LOG}/{version:020}.json"


def to_lines(actions: Iterable[Action]) -> bytes:
    """Actions as the text of a commit."""
    return "".join(f"{json.dumps(action)}\n" for action in actions).encode()


def deletion_id(action: Mapping[str, Any]) -> str:
    """The identity of a file's deletion vector; empty if it has none."""
    vector = action.get("deletionVector")
    if not vector:
        return ""
    offset = vector.get("offset")
    behind = "" if offset is None else f"@{offset}"
    return f"{vector['storageType']}{vector['pathOrInlineDv']}{behind}"


def removal(add: Action, now_ms: int) -> Action:
    """The action that removes a file."""
    kept = ("path", "partitionValues", "size", "tags", "deletionVector")
    there = {name: add[name] for name in kept if add.get(name) is not None}
    more = {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
    return {**there, **more}


def file_key(action: Mapping[str, Any]) -> tuple[str, str]:
    """What tells a file, with its deleted rows, from all others of a table."""
    return action["path"], deletion_id(action)


def _versions(folder: TableFolder, version: int | None) -> tuple[_Checkpoint | None, list[int]]:
    """The checkpoint to begin with, and the commits behind it, up to a version."""
    names = folder.log_names()
    numbers = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
    checkpoint = _last_checkpoint(names, version)
    kind = DataLost if version is None else UserError
    if version is None:
        version = max([*numbers, -1 if checkpoint is None else checkpoint.version], default=-1)
        if version < 0:
            return None, []
    begin = 0 if checkpoint is None else checkpoint.version + 1
    wanted = range(begin, version + 1)
    missing = [number for number in wanted if number not in numbers]
    if 0 < len(missing) <= _UNLISTED_MAX:
        # A listing of a disk can lack a file that came meanwhile, and have one that came later.
        paths = {folder.path(commit_name(number)): number for number in missing}
        missing = [paths[path] for path in folder.missing(list(paths))]
    if missing:
        last = max([*numbers, begin - 1])
        raise kind(
            f"version {version} of {folder.uri} cannot be read\n"
            f"  found: its log lacks version {missing[0]}; the last one is {last}\n"
            "  to fix: name a version whose log is still kept"
        )
    return checkpoint, list(wanted)


def _last_checkpoint(names: Iterable[str], version: int | None) -> _Checkpoint | None:
    """The last whole checkpoint that is not behind a version."""
    found: dict[tuple[int, str], list[tuple[int, int, str]]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None or (version is not None and int(match[1]) > version):
            continue
        is_plain = match[4] is None
        if is_plain and match[5] == "json":
            continue
        kind = match[4] or (f"of {match[3]}" if match[3] else "")
        part, parts = int(match[2] or 1), int(match[3] or 1)
        found.setdefault((int(match[1]), kind), []).append((part, parts, name))
    whole = [
        _Checkpoint(number, tuple(name for _, _, name in sorted(pieces)))
        for (number, _), pieces in found.items()
        if len(pieces) == pieces[0][1]
    ]
    return max(whole, key=lambda checkpoint: checkpoint.version, default=None)


def _checkpoint_actions(
    folder: TableFolder, checkpoint: _Checkpoint, columns: tuple[str, ...]
) -> Iterator[Action]:
    with_files = columns == _FILE_COLUMNS
    for name in checkpoint.names:
        if name.endswith(".json"):
            data = folder.read(f"{LOG}/{name}")
            actions: Iterable[Action] = _parsed(data or b"", with_files=with_files)
        else:
            wanted = (*columns, "sidecar") if with_files else columns
            actions = _rows(folder.parquet(f"{LOG}/{name}", wanted))
        for action in actions:
            if action.get("sidecar") is not None:
                if with_files:
                    side = f"{LOG}/_sidecars/{action['sidecar']['path'].rpartition('/')[2]}"
                    yield from _rows(folder.parquet(side, columns))
                continue
            yield action


def _rows(table: pa.Table) -> Iterator[Action]:
    """The actions of a checkpoint: one column is set in each row."""
    for name in table.column_names:
        column = table[name].combine_chunks().drop_null()
        for value in column.to_pylist():
            yield {name: _without_nulls(value)}


def _without_nulls(value: Mapping[str, Any]) -> Action:
    # Maps come as lists of pairs.
    return {
        key: dict(item) if key in ("partitionValues", "configuration", "tags") else item
        for key, item in value.items()
        if item is not None
    }


def _commit_actions(folder: TableFolder, version: int, *, with_files: bool) -> Iterable[Action]:
    data = folder.read(commit_name(version))
    if data is None:
        raise DataLost(
            f"version {version} of {folder.uri} is gone\n  found: no {commit_name(version)}\n"
            "  to fix: read a version whose log is still kept"
        )
    return _parsed(data, with_files=with_files)


def _parsed(data: bytes, *, with_files: bool) -> Iterator[Action]:
    for line in data.decode().split("\n"):  # JSON may have other ends of lines within texts.
        if not line.strip():
            continue
        if not with_files and line.startswith(tuple(f'{{"{kind}":' for kind in _FILE_ACTIONS)):
            continue
        yield json.loads(line)


def _applied(
    action: Action,
    protocol: TableProtocol,
    metadata: TableMetadata | None,
    places: dict[str, int],
) -> tuple[TableProtocol, TableMetadata | None]:
    if action.get("protocol") is not None:
        given = action["protocol"]
        protocol = TableProtocol(
            reader=given["minReaderVersion"],
            writer=given["minWriterVersion"],
            reader_features=frozenset(given.get("readerFeatures") or ()),
            writer_features=frozenset(given.get("writerFeatures") or ()),
        )
    if action.get("metaData") is not None:
        given = action["metaData"]
        metadata = TableMetadata(
            id=given["id"],
            fields=tuple(json.loads(given["schemaString"])["fields"]),
            partition_columns=tuple(given.get("partitionColumns") or ()),
            configuration=dict(given.get("configuration") or {}),
        )
    if action.get("txn") is not None:
        places[action["txn"]["appId"]] = action["txn"]["version"]
    return protocol, metadata
