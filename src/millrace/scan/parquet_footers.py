"""What the footer of a Parquet file says: schema, row groups, and what the engine reads by itself.

The engine leaves out row groups by the bounds in a footer, so it reads only files of writers whose
bounds are right, and only columns that have the same values in DuckDB as in Arrow. Other columns
are read as Arrow. Invariant: a footer is read once, when its file is listed, and tasks are given
what they need of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from millrace.identity.schemas import plain_type
from millrace.scan.input_files import InputFile
from millrace.scan.remote_files import random_access
from millrace.storage.file_systems import is_remote

WRITERS: Final = re.compile(
    r"parquet-cpp-arrow |parquet-rs |DuckDB |Polars|parquet-mr version 1\.(1[0-9]|[2-9][0-9])\."
)
_WILD: Final = re.compile(r"[*?\[\]{}]")
"""What is a pattern in the engine's own paths."""
_EXACT: Final = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_float32,
    pt.is_float64,
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_date32,
    pt.is_decimal128,
    pt.is_timestamp,
)
_LISTS: Final = (pt.is_list, pt.is_large_list)
LOGICAL: Final = frozenset({"NONE", "STRING", "INT", "DECIMAL", "DATE", "TIMESTAMP"})
"""Kinds of leaves in a file that both read as the same values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFooter:
    """Schema and row groups of a file. `engine_columns` are those that the engine reads itself.

    `column_shares` says which part of the file's bytes a column takes.
    """

    schema: pa.Schema
    row_group_bytes: tuple[int, ...]
    row_group_rows: tuple[int, ...]
    column_shares: dict[str, float]
    engine_columns: frozenset[str]


def read_footer(listed: InputFile) -> ParquetFooter:
    """The footer of a file."""
    with pq.ParquetFile(random_access(listed.path, listed.options)) as file:
        meta, schema = file.metadata, file.schema_arrow
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        return ParquetFooter(
            schema=schema,
            row_group_bytes=tuple(group.total_byte_size for group in groups),
            row_group_rows=tuple(group.num_rows for group in groups),
            column_shares=_column_shares(meta),
            engine_columns=_engine_columns(listed.path, meta, schema),
        )


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of a type can contain NaN, of which bounds in a footer say nothing."""
    if pt.is_map(kind):
        return has_floats(kind.key_type) or has_floats(kind.item_type)
    return bool(pt.is_floating(kind)) or any(
        has_floats(kind.field(number).type) for number in range(kind.num_fields)
    )


def _column_shares(meta: pq.FileMetaData) -> dict[str, float]:
    """By the first row group: looking at all of them would cost more than it tells."""
    if not meta.num_row_groups:
        return {}
    group = meta.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    total = sum(chunk.total_uncompressed_size for chunk in chunks) or 1
    shares: dict[str, float] = {}
    for chunk in chunks:
        name = chunk.path_in_schema.split(".")[0]
        shares[name] = shares.get(name, 0.0) + chunk.total_uncompressed_size / total
    return shares


def _engine_columns(path: str, meta: pq.FileMetaData, schema: pa.Schema) -> frozenset[str]:
    if is_remote(path):
        return frozenset()
    if not WRITERS.match(meta.created_by or "") or _alike(schema.names) or _WILD.search(path):
        return frozenset()
    leaves = (meta.schema.column(number) for number in range(meta.num_columns))
    special = {
        leaf.path.split(".")[0]
        for leaf in leaves
        if leaf.logical_type.type not in LOGICAL or leaf.physical_type == "INT96"
    }
    return frozenset(
        field.name for field in schema if field.name not in special and _is_exact(field.type)
    )


def _is_exact(kind: pa.DataType) -> bool:
    """Whether both read the same values, however their writer held them in memory."""
    if pt.is_dictionary(kind) or pt.is_string_view(kind) or pt.is_binary_view(kind):
        return _is_exact(plain_type(kind))
    if pt.is_map(kind):
        return _is_exact(kind.key_type) and _is_exact(kind.item_type)
    if any(check(kind) for check in _LISTS):
        return _is_exact(kind.value_type)
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        return bool(names) and not _alike(names) and all(_is_exact(field.type) for field in kind)
    return any(check(kind) for check in _EXACT)


def _alike(names: Sequence[str]) -> bool:
    """Whether names differ only in the case of letters, which the engine does not tell apart."""
    return len({name.lower() for name in names}) < len(names)
