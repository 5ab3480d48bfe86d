"""Data files of Iceberg as JSON, so that a worker can describe a file that the driver commits.

Invariant: a file that is read back is described as it was: partition, counts and bounds.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from millrace.tables.table_port import TableFile

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType

_COUNTS: Final = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS: Final = ("lower_bounds", "upper_bounds")


def to_text(file: DataFile, metadata: TableMetadata) -> str:
    """A data file that was written for a table just now as JSON, without path, rows and bytes."""
    kinds = _partition_types(metadata, metadata.default_spec_id)
    values = [file.partition[number] for number in range(len(kinds))]
    text = {
        "spec": metadata.default_spec_id,
        "partition": [
            None if value is None else _encoded(to_bytes(kind, value))  # type: ignore[arg-type]
            for kind, value in zip(kinds, values, strict=True)
        ],
        "offsets": file.split_offsets,
        **{name: _items(getattr(file, name)) for name in _COUNTS},
        **{
            name: [[at, _encoded(value)] for at, value in _items(getattr(file, name))]
            for name in _BOUNDS
        },
    }
    return json.dumps(text, separators=(",", ":"))


def described(written: TableFile, metadata: TableMetadata) -> DataFile:
    """The data file of a file that was written for a table."""
    read: dict[str, Any] = json.loads(written.about)
    kinds = _partition_types(metadata, read["spec"])
    values = [
        None if value is None else from_bytes(kind, base64.b64decode(value))  # type: ignore[arg-type]
        for kind, value in zip(kinds, read["partition"], strict=True)
    ]
    about: dict[str, Any] = {name: {int(at): n for at, n in read[name]} for name in _COUNTS}
    for name in _BOUNDS:
        about[name] = {int(at): base64.b64decode(bound) for at, bound in read[name]}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=written.rows,
        file_size_in_bytes=written.bytes,
        split_offsets=read["offsets"],
        **about,
    )
    file.spec_id = read["spec"]
    return file


def spec_of(text: str) -> int:
    """The partitioning that a described file was written for."""
    return int(json.loads(text)["spec"])


def _partition_types(metadata: TableMetadata, spec_id: int) -> list[IcebergType]:
    kind = metadata.specs()[spec_id].partition_type(metadata.schema())
    return [field.field_type for field in kind.fields]


def _items(values: dict[int, Any] | None) -> list[list[Any]]:
    return [[number, value] for number, value in (values or {}).items()]


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
