"""Iceberg tables for tests: a catalog in a file, and deletes that pyiceberg cannot write itself."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap
from tests.unit.execute.test_query_run import TOKEN

import millrace as mr
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

PATH_ID, POSITION_ID = 2147483546, 2147483545
MORE = "catalog.json"
"""Properties of the catalog in this folder that are others, for tables in a store."""
DeleteKind = Literal["files", "vectors"]


def properties(folder: Path) -> dict[str, str]:
    """A catalog in a file of SQLite, and its tables beside it, or where `MORE` says."""
    more = folder / MORE
    others = json.loads(more.read_text("utf-8")) if more.exists() else {}
    return {
        "name": "kit",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        **others,
    }


def catalog_in(folder: Path) -> Catalog:
    """The catalog, with a namespace `db`."""
    catalog = load_catalog(**properties(folder))
    catalog.create_namespace_if_not_exists("db")
    return catalog


@contextmanager
def runs_here(path: Path, **options: Any) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:  # noqa: ANN401 - of a Config
    """A workspace whose queries run in this process, without Spark."""
    config = mr.Config(**options)
    with mr.open(path, config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(config, lambda _: None)
        workspace = ShuffleWorkspace(
            store=runtime_of(ws).store,
            folders=folders,
            config=config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )
        yield workspace, ws


def data_files(table: Table) -> list[DataFile]:
    """The data files of the current snapshot, in the order of their paths."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    entries = (entry for one in manifests for entry in one.fetch_manifest_entry(table.io))
    files = [entry.data_file for entry in entries]
    data = [file for file in files if file.content == DataFileContent.DATA]
    return sorted(data, key=lambda file: file.file_path)


def local(location: str) -> Path:
    """The path of a file of a table."""
    return Path(location.removeprefix("file://"))


def delete_rows(
    table: Table,
    positions: Mapping[str, Sequence[int]],
    kind: DeleteKind = "files",
    *,
    together: bool = True,
) -> None:
    """Delete rows by their positions, as a writer that merges on read does.

    With `together`, one delete file is about all data files of a partition.
    """
    known = {file.file_path: file for file in data_files(table)}
    groups: dict[Any, list[DataFile]] = defaultdict(list)
    for path in positions:
        file = known[path]
        groups[(file.spec_id, file.partition, "" if together else path)].append(file)
    made = [
        _delete_file(table, files, {f.file_path: positions[f.file_path] for f in files}, kind)
        for files in groups.values()
    ]
    commit_deletes(table, made)


def commit_deletes(table: Table, files: Sequence[DataFile]) -> None:
    """A snapshot with delete files more."""
    with table.transaction() as transaction:
        producer = _DeleteFiles(Operation.OVERWRITE, transaction, table.io, uuid.uuid4(), {})
        producer.deletes = list(files)
        producer.commit()


def equality_delete_file(table: Table, like: DataFile, column: int) -> DataFile:
    """A file that deletes rows by equal values of a column, in the partition of a data file."""
    path = f"{table.location()}/data/equal-{uuid.uuid4()}.parquet"
    rows = pa.table({"a": pa.array([1], pa.int64())})
    local(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, local(path))
    return _described(path, like, DataFileContent.EQUALITY_DELETES, equality_ids=[column])


class _DeleteFiles(_FastAppendFiles):
    deletes: list[DataFile]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self.deletes:
            by_spec[file.spec_id].append(file)
        return [*manifests, *(self._written(spec, files) for spec, files in by_spec.items())]

    def _written(self, spec_id: int, files: Iterable[DataFile]) -> ManifestFile:
        writer = _DeleteManifest(
            self.spec(spec_id),
            self.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )
        with writer:
            for file in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _delete_file(
    table: Table, files: list[DataFile], positions: Mapping[str, Sequence[int]], kind: DeleteKind
) -> DataFile:
    folder = f"{table.location()}/data"
    count = sum(len(rows) for rows in positions.values())
    if kind == "vectors":
        path = f"{folder}/deletes-{uuid.uuid4()}.puffin"
        local(path).write_bytes(puffin({name: list(rows) for name, rows in positions.items()}))
        return _described(
            path, files[0], DataFileContent.POSITION_DELETES, count, FileFormat.PUFFIN
        )
    path = f"{folder}/deletes-{uuid.uuid4()}.parquet"
    rows = sorted((name, row) for name, many in positions.items() for row in many)
    names = pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": str(PATH_ID)})
    numbers = pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": str(POSITION_ID)})
    columns = [pa.array([row[at] for row in rows]) for at in (0, 1)]
    pq.write_table(pa.table(columns, schema=pa.schema([names, numbers])), local(path))
    paths = sorted(positions)
    bounds = {
        "lower_bounds": {PATH_ID: paths[0].encode()},
        "upper_bounds": {PATH_ID: paths[-1].encode()},
    }
    content = DataFileContent.POSITION_DELETES
    return _described(path, files[0], content, count, FileFormat.PARQUET, **bounds)


def _described(
    path: str,
    like: DataFile,
    content: DataFileContent,
    count: int = 1,
    form: FileFormat = FileFormat.PARQUET,
    **more: Any,  # noqa: ANN401 - of a DataFile
) -> DataFile:
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=form,
        partition=like.partition or Record(),
        record_count=count,
        file_size_in_bytes=local(path).stat().st_size,
        **more,
    )
    file.spec_id = like.spec_id
    return file


def puffin(positions: Mapping[str, Sequence[int]]) -> bytes:
    """A Puffin file with a deletion vector for each data file."""
    data, blobs = b"PFA1", []
    for path, rows in positions.items():
        bitmap = BitMap(rows)
        bitmap.run_optimize()
        body = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + bitmap.serialize()
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(bitmap))},
            }
        )
        data += blob
    footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
    return data + b"PFA1" + footer + struct.pack("<II", len(footer), 0) + b"PFA1"
