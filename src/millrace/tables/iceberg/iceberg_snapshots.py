"""The files of one snapshot of an Iceberg table, as a source.

Manifests say which data files there are, which delete files apply to each, and the bounds of their
values. Invariant: a snapshot is read whole and exactly, or it is refused: by the feature that is
not supported, and by the file that has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.scan import input_files
from millrace.scan.file_mapping import TableField
from millrace.scan.input_files import InputFile
from millrace.scan.source import FileSource, of_each
from millrace.scan.table_source import SnapshotFile, table_source
from millrace.storage.storage_options import StorageOptions
from millrace.tables.iceberg.iceberg_access import file_access, file_path
from millrace.tables.iceberg.iceberg_bounds import bounds_of
from millrace.tables.iceberg.iceberg_columns import table_fields
from millrace.tables.iceberg.iceberg_deletes import (
    DeletedPositions,
    PositionFile,
    VectorPart,
    data_paths,
    vectors_in,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_PATH_ID: Final = 2147483546
"""The id of the column of paths in files of deleted positions."""
_VERSION_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """What was found: the columns, and the files; None if the snapshot has none."""

    schema: pa.Schema
    source: FileSource | None
    snapshot_id: int | None


def pin_snapshot(table: Table, snapshot: int | str | None, *, call: str) -> PinnedSnapshot:
    """The files of a snapshot: the current one, one by its id, or that of a branch or a tag."""
    if table.metadata.format_version > _VERSION_MAX:
        raise _refused(table, f"it is of format version {table.metadata.format_version}", call)
    chosen, schema = _chosen(table, snapshot, call)
    fields = table_fields(schema, table.metadata.name_mapping())
    columns = pa.schema([(one.name, one.type) for one in fields])
    if chosen is None:
        return PinnedSnapshot(columns, None, None)
    manifests = chosen.manifests(table.io)
    entries = [entry for some in of_each(manifests, lambda m: _entries(table, m)) for entry in some]
    data, deletes = _split(table, entries, call)
    if not data:
        return PinnedSnapshot(columns, None, chosen.snapshot_id)
    access = file_access(data[0].data_file.file_path, table.io.properties)
    deleted = _DeleteIndex(access)
    for entry in deletes:
        deleted.add(entry)
    shared = _identity_columns(table, data, fields)
    files = [
        SnapshotFile(
            path=file_path(entry.data_file.file_path),
            partition=tuple(constants[name] for name in shared),
            constants=constants,
            deleted=deleted.of(entry),
        )
        for entry in data
        for constants in [_constants(table, entry.data_file, fields)]
    ]
    source = table_source(
        files,
        fields,
        ids="if there",
        partitions=shared,
        bounds=bounds_of([entry.data_file for entry in data], schema, fields),
        access=access,
    )
    return PinnedSnapshot(columns, source, chosen.snapshot_id)


def _chosen(table: Table, snapshot: int | str | None, call: str) -> tuple[Snapshot | None, Schema]:
    """A snapshot and its columns: its own, or the table's for what is written now, a branch."""
    metadata = table.metadata
    if snapshot is None:
        return metadata.current_snapshot(), metadata.schema()
    is_id = isinstance(snapshot, int) and not isinstance(snapshot, bool)
    found = metadata.snapshot_by_id(int(snapshot)) if is_id else None
    if isinstance(snapshot, str):
        found = metadata.snapshot_by_name(snapshot)
    if found is None:
        names = ", ".join(sorted(metadata.refs)) or "no branch and no tag"
        raise UserError(
            f"{call}: the Iceberg table has no snapshot {snapshot!r}\n"
            f"  found: {len(metadata.snapshots)} snapshots; {names}\n"
            "  to fix: give the id of a snapshot that is kept, a branch or a tag"
        )
    if isinstance(snapshot, str) and metadata.refs[snapshot].snapshot_ref_type == "branch":
        return found, metadata.schema()
    schemas = {schema.schema_id: schema for schema in metadata.schemas}
    return found, schemas.get(found.schema_id or 0, metadata.schema())


def _entries(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    return manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def _split(
    table: Table, entries: Iterable[ManifestEntry], call: str
) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Data files with rows, and the files of deleted positions."""
    from pyiceberg.manifest import DataFileContent, FileFormat  # noqa: PLC0415 - an extra brings it

    data: list[ManifestEntry] = []
    deletes: list[ManifestEntry] = []
    equality: list[ManifestEntry] = []
    for entry in entries:
        file = entry.data_file
        if file.key_metadata is not None:
            raise _refused(table, f"{file.file_path} is encrypted", call)
        if file.content == DataFileContent.DATA:
            if file.file_format != FileFormat.PARQUET:
                what = f"{file.file_path} is a file of {file.file_format.value}, not Parquet"
                raise _refused(table, what, call)
            if file.record_count:
                data.append(entry)
        elif file.content == DataFileContent.EQUALITY_DELETES:
            equality.append(entry)
        else:
            if file.file_format not in (FileFormat.PARQUET, FileFormat.PUFFIN):
                what = f"{file.file_path} has positions in {file.file_format.value}"
                raise _refused(table, what, call)
            deletes.append(entry)
    for entry in equality:
        if any(_may_delete(table, entry, of) for of in data):
            what = f"{entry.data_file.file_path} deletes rows by equal values (equality deletes)"
            raise _refused(table, what, call)
    return data, deletes


def _may_delete(table: Table, equality: ManifestEntry, data: ManifestEntry) -> bool:
    """Whether a file of equality deletes applies to a data file."""
    is_global = table.metadata.specs()[equality.data_file.spec_id].is_unpartitioned()
    is_newer = _sequence(equality) > _sequence(data)
    return is_newer and (is_global or _partition(equality) == _partition(data))


def _sequence(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def _partition(entry: ManifestEntry) -> tuple[int, Any]:
    return entry.data_file.spec_id, entry.data_file.partition


@dataclass(slots=True)
class _DeleteIndex:
    """Which deleted positions are whose, by the data file's name in the table."""

    access: StorageOptions
    by_path: dict[str, list[tuple[int, Any, PositionFile | VectorPart]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, entry: ManifestEntry) -> None:
        """Note a file of deleted positions."""
        from pyiceberg.manifest import FileFormat  # noqa: PLC0415 - an extra brings it

        described = entry.data_file
        file = input_files.describe(file_path(described.file_path), self.access)
        sequence = _sequence(entry)
        if described.file_format == FileFormat.PUFFIN:
            for path, vector in vectors_in(file).items():
                self.by_path[path].append((sequence, None, vector))
            return
        for path in _paths(described, file):
            self.by_path[path].append((sequence, _partition(entry), PositionFile(file, path)))

    def of(self, entry: ManifestEntry) -> DeletedPositions | None:
        """What is deleted of a data file, by files that are not older than it."""
        found = [
            part
            for sequence, partition, part in self.by_path.get(entry.data_file.file_path, ())
            if sequence >= _sequence(entry) and partition in (None, _partition(entry))
        ]
        return DeletedPositions(tuple(found)) if found else None


def _paths(described: DataFile, file: InputFile) -> Iterable[str]:
    """The data files that a file of positions is about."""
    low = (described.lower_bounds or {}).get(_PATH_ID)
    high = (described.upper_bounds or {}).get(_PATH_ID)
    if low is not None and low == high:
        return [bytes(low).decode()]
    return data_paths(file)


def _constants(table: Table, file: DataFile, fields: Sequence[TableField]) -> dict[str, Any]:
    """The values that a file's partition says columns have, by the columns' names."""
    spec = table.metadata.specs()[file.spec_id]
    by_id = {one.id: one for one in fields}
    return {
        column.name: _value(file.partition[position], column.type)
        for position, part in enumerate(spec.fields)
        if str(part.transform) == "identity" and (column := by_id.get(part.source_id)) is not None
    }


def _value(value: object, kind: pa.DataType) -> Any:  # noqa: ANN401 - of any type
    return pa.scalar(value, kind).as_py()


def _identity_columns(
    table: Table, data: Sequence[ManifestEntry], fields: Sequence[TableField]
) -> tuple[str, ...]:
    """Columns that the partitions of all files give exactly, which then need not be read."""
    specs = table.metadata.specs()
    exact = {
        one.id: one.name
        for one in fields
        if pt.is_integer(one.type)
        or pt.is_string(one.type)
        or pt.is_date(one.type)
        or pt.is_boolean(one.type)
        or pt.is_decimal(one.type)
    }
    shared = set(exact)
    for spec_id in {entry.data_file.spec_id for entry in data}:
        parts = specs[spec_id].fields
        shared &= {part.source_id for part in parts if str(part.transform) == "identity"}
    return tuple(name for number, name in exact.items() if number in shared)


def _refused(table: Table, what: str, call: str) -> UserError:
    name = ".".join(table.name())
    return UserError(
        f"{call}: the Iceberg table {name} has what is not read here\n  found: {what}\n"
        "  to fix: compact the table, or read it with Spark: ws.table() of Spark's catalog"
    )
