"""One version of a Delta table as a source: its files, their columns, bounds and deleted rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pt

from millrace.config import Config
from millrace.errors import UnsupportedType, UserError
from millrace.scan.file_bounds import PATH, ROWS, high_of, low_of, nulls_of
from millrace.scan.file_mapping import FieldIds, TableField
from millrace.scan.source import FileSource
from millrace.scan.table_source import SnapshotFile, table_source
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.deletion_vectors import DeletionVector
from millrace.tables.delta.delta_log import Action, TableState, read_files, read_state
from millrace.tables.delta.delta_types import DeltaType, arrow_type
from millrace.tables.delta.log_folder import TableFolder, local_table, table_folder

_READ: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_READER_MAX: Final = 3
_MAPPING: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_ID: Final = "delta.columnMapping.id"
_SURE_DIGITS: Final = 15
_TRUNCATED: Final = timedelta(milliseconds=1)
"""Writers cut the bounds of times to milliseconds."""


def delta_source(
    uri: str, version: int | None, options: StorageOptions, config: Config
) -> FileSource | pa.Schema:
    """The rows of a table at a version, or now; only its columns if it has no files."""
    folder = table_folder(uri, options, config)
    where = uri if is_remote(uri) else local_table(uri)
    state = read_state(folder, version)
    if state is None:
        raise UserError(
            f"there is no Delta table at {where}\n  found: no log in it\n"
            "  to fix: name the folder that has _delta_log"
        )
    _check_readable(state, where)
    table = TableColumns(state, where)
    files = read_files(folder, state.version)
    if not files:
        return pa.schema([(field.name, field.type) for field in table.fields])
    listed = [snapshot_file(add, folder, table, where, options) for add in files]
    return table.source(listed, options, bounds=file_bounds(files, listed, table))


class TableColumns:
    """The columns of a table, with their names in files and in the log."""

    def __init__(self, state: TableState, where: str) -> None:
        mode = state.metadata.configuration.get(_MAPPING, "none")
        if mode not in ("none", "name", "id"):
            raise UserError(
                f"the Delta table {where} cannot be read\n  found: column mapping by {mode}\n"
                "  to fix: read it with Spark"
            )
        self.is_mapped = mode != "none"
        self.ids: FieldIds = "always" if mode == "id" else "never"
        self.where = where
        self.fields = [self._field(field) for field in state.metadata.fields]
        self.physical = {field["name"]: self._physical(field) for field in state.metadata.fields}
        self.partitions = [
            (name, self.physical[name], field.type)
            for name in state.metadata.partition_columns
            for field in self.fields
            if field.name == name
        ]

    def source(
        self,
        files: Sequence[SnapshotFile],
        options: StorageOptions,
        *,
        bounds: pa.Table | None = None,
    ) -> FileSource:
        """The rows of files of the table."""
        return table_source(
            files,
            self.fields,
            ids=self.ids,
            partitions=[name for name, _, _ in self.partitions],
            bounds=bounds,
            access=options,
        )

    def _physical(self, field: Mapping[str, Any]) -> str:
        if not self.is_mapped:
            return str(field["name"])
        return str(field["metadata"][_PHYSICAL])

    def _field(self, field: Mapping[str, Any]) -> TableField:
        name, kind = field["name"], field["type"]
        return TableField(
            name=name,
            type=arrow_type(kind, name=name, who=f"the Delta table {self.where}"),
            id=(field.get("metadata") or {}).get(_ID) if self.is_mapped else None,
            names=(self._physical(field),),
            parts=self._parts(kind, name),
        )

    def _parts(self, kind: DeltaType, name: str) -> tuple[TableField, ...]:
        if isinstance(kind, str):
            return ()
        if kind["type"] == "struct":
            return tuple(self._field(inner) for inner in kind["fields"])
        inside = {"array": ("elementType",), "map": ("keyType", "valueType")}[kind["type"]]
        return tuple(self._part(kind[part], name) for part in inside)

    def _part(self, kind: DeltaType, name: str) -> TableField:
        arrow = arrow_type(kind, name=name, who=f"the Delta table {self.where}")
        return TableField(name=name, type=arrow, parts=self._parts(kind, name))


def _check_readable(state: TableState, where: str) -> None:
    protocol = state.protocol
    unknown = sorted(protocol.reader_features - _READ)
    if protocol.reader > _READER_MAX or unknown:
        found = f"feature {unknown[0]}" if unknown else f"reader version {protocol.reader}"
        raise UserError(
            f"the Delta table {where} cannot be read\n  found: {found}\n"
            "  to fix: read it with Spark, as in ws.from_spark(spark.read.format('delta')...)"
        )


def snapshot_file(
    add: Action, folder: TableFolder, table: TableColumns, where: str, options: StorageOptions
) -> SnapshotFile:
    """A data file, as an add action of the log describes it."""
    path = unquote(add["path"])
    if path.startswith(("file:", "/")):
        path = local_table(path)
    elif "://" not in path:
        path = folder.path(path)
    vector = add.get("deletionVector")
    given = add.get("partitionValues") or {}
    return SnapshotFile(
        path=path,
        partition=tuple(
            partition_value(given.get(physical), kind, name, where)
            for name, physical, kind in table.partitions
        ),
        deleted=None if not vector else DeletionVector.of(vector, uri=where, options=options),
    )


def partition_value(text: str | None, kind: pa.DataType, name: str, where: str) -> Any:  # noqa: ANN401
    """The value of a partition column, of its text in the log."""
    if text is None or text == "":
        return None
    try:
        if pt.is_boolean(kind):
            return {"true": True, "false": False}[text.lower()]
        if pt.is_integer(kind):
            return int(text)
        if pt.is_floating(kind):
            return float(text)
        if pt.is_decimal(kind):
            return Decimal(text)
        if pt.is_date(kind):
            return date.fromisoformat(text)
        if pt.is_timestamp(kind):
            return _time(text, kind)
    except (ValueError, KeyError, InvalidOperation) as error:
        raise UserError(
            f"a file of the Delta table {where} cannot be read\n"
            f"  found: {text!r} for its partition column {name!r}, which is {kind}\n"
            "  to fix: read it with Spark"
        ) from error
    if pt.is_string(kind):
        return text
    raise UnsupportedType(
        f"the Delta table {where} cannot be read\n  found: partition column {name!r} is {kind}\n"
        "  to fix: read it with Spark"
    )


def _time(text: str, kind: pa.DataType) -> datetime:
    value = datetime.fromisoformat(text)
    if kind.tz is None:
        if value.tzinfo is not None:
            raise ValueError("a zone where there is none")
        return value
    if value.tzinfo is None:
        raise ValueError("a time in the zone of whoever wrote it, which is not known")
    return value.astimezone(UTC)


def file_bounds(
    files: Sequence[Action],
    listed: Sequence[SnapshotFile],
    table: TableColumns,
    *,
    with_partitions: bool = False,
) -> pa.Table | None:
    """What the log says of the values in files; the values of partitions too, if that is asked."""
    stats = [_statistics(add) for add in files]
    if not (any(stats) or with_partitions):
        return None
    columns: dict[str, pa.Array] = {
        PATH: pa.array([file.path for file in listed], pa.string()),
        ROWS: pa.array([_count(each.get("numRecords")) for each in stats], pa.int64()),
    }
    partitions = {name for name, _, _ in table.partitions}
    for field in table.fields:
        read = _readers(field.type)
        if field.name in partitions or read is None:
            continue
        physical = table.physical[field.name]
        for part, named, is_upper in (("minValues", low_of, False), ("maxValues", high_of, True)):
            texts = [(each.get(part) or {}).get(physical) for each in stats]
            values = [_read(text, read, is_upper=is_upper) for text in texts]
            columns[named(field.name)] = pa.array(values, field.type)
        counts = [(each.get("nullCount") or {}).get(physical) for each in stats]
        columns[nulls_of(field.name)] = pa.array(map(_count, counts), pa.int64())
    if with_partitions:
        for number, (name, _, kind) in enumerate(table.partitions):
            values = [file.partition[number] for file in listed]
            columns[low_of(name)] = columns[high_of(name)] = pa.array(values, kind)
    return pa.table(columns)


def _statistics(add: Action) -> Mapping[str, Any]:
    text = add.get("stats")
    found = json.loads(text, parse_float=Decimal) if text else {}
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _read(text: Any, read: Callable[[Any, bool], Any], *, is_upper: bool) -> Any:  # noqa: ANN401
    """A bound of the log as a value; None if it is none that is sure."""
    if text is None:
        return None
    try:
        return read(text, is_upper)
    except (ValueError, TypeError, OverflowError, InvalidOperation, AttributeError):
        return None


def _readers(kind: pa.DataType) -> Callable[[Any, bool], Any] | None:
    if pt.is_integer(kind):
        return lambda value, _: value if isinstance(value, int) else None
    if pt.is_floating(kind):
        return lambda value, _: float(value)
    if pt.is_string(kind):
        return lambda value, _: value if isinstance(value, str) else None
    if pt.is_date(kind):
        return lambda value, _: date.fromisoformat(value)
    if pt.is_decimal(kind) and kind.precision <= _SURE_DIGITS:
        unit = Decimal(1).scaleb(-kind.scale)
        return lambda value, _: Decimal(str(value)).quantize(unit)
    if pt.is_timestamp(kind):
        return lambda value, is_upper: _bound_time(value, kind, is_upper=is_upper)
    return None


def _bound_time(value: str, kind: pa.DataType, *, is_upper: bool) -> datetime:
    found = _time(value, kind)
    return found + _TRUNCATED if is_upper else found
