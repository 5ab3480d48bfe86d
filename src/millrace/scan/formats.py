"""Reads Parquet, Arrow, CSV and JSON files natively, in batches of bounded size.

Invariant: no row passes through the JVM, and a file that cannot be read as promised is an error
that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from millrace.config import MIB
from millrace.errors import UserError
from millrace.scan.group_bounds import ChooseGroups
from millrace.scan.input_files import InputFile
from millrace.scan.parquet_ahead import open_parquet
from millrace.scan.parquet_footers import read_footer
from millrace.scan.remote_files import mapped, text_input, text_stream
from millrace.scan.splits import FileSplit

SELF_DESCRIBING: Final = frozenset({"parquet", "arrow"})
_FILE_MAGIC: Final = b"ARROW1"
_TEXT_BLOCK_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself. `row_group_bytes` is None for a file that cannot be cut.

    `column_shares` says which part of its bytes a column takes, where the format tells.
    """

    schema: pa.Schema
    row_group_bytes: tuple[int, ...] | None
    column_shares: Mapping[str, float] = field(default_factory=dict)
    row_group_rows: tuple[int, ...] | None = None
    engine_columns: frozenset[str] = frozenset()
    """Columns that the query engine reads of the file by itself."""


def footer(kind: str, file: InputFile) -> Footer:
    """Schema and pieces of a Parquet or Arrow file."""
    with _naming(file.path, kind):
        if kind == "parquet":
            read = read_footer(file)
            return Footer(
                read.schema,
                read.row_group_bytes,
                read.column_shares,
                read.row_group_rows,
                read.engine_columns,
            )
        return _arrow_footer(file)


def infer_schema(kind: str, file: InputFile, options: Mapping[str, Any]) -> pa.Schema:
    """Schema of a CSV or JSON file, from its first block."""
    with _naming(file.path, kind):
        if kind == "csv":
            with _open_csv(file, None, options) as stream:
                return stream.schema
        stream_of = text_stream(file.path, file.options)
        with pa.json.open_json(stream_of, read_options=_json_options()) as stream:
            return stream.schema


def read(
    kind: str,
    split: FileSplit,
    schema: pa.Schema,
    options: Mapping[str, Any],
    batch_bytes: int,
    columns: Sequence[str] | None = None,
    choose: ChooseGroups | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a split, in file order; `columns` spares reading others where the format can.

    `choose` may leave out row groups of Parquet.
    """
    file = split.file
    with _naming(file.path, kind):
        match kind:
            case "parquet":
                yield from _read_parquet(split, batch_bytes, columns, choose)
            case "arrow":
                yield from _read_arrow(split)
            case "csv":
                if not is_empty(file):
                    with _open_csv(file, schema, options) as stream:
                        yield from stream
            case "json":
                if not is_empty(file):
                    yield from _read_json(file, schema)
            case _:
                raise AssertionError(kind)


def is_empty(file: InputFile) -> bool:
    """Whether a text file, once uncompressed, has no byte."""
    with text_input(file.path, file.options) as stream:
        return not stream.read(1)


def _read_parquet(
    split: FileSplit,
    batch_bytes: int,
    columns: Sequence[str] | None,
    choose: ChooseGroups | None,
) -> Iterator[pa.RecordBatch]:
    with open_parquet(split.file.path, split.file.options) as opened:
        file = opened.file
        meta = file.metadata
        groups = split.row_groups
        numbers: Sequence[int] = range(meta.num_row_groups) if groups is None else groups
        numbers = numbers if choose is None else choose(file, numbers)
        rows = sum(meta.row_group(n).num_rows for n in numbers)
        size = sum(meta.row_group(n).total_byte_size for n in numbers)
        if not rows:
            return
        opened.fetch(numbers, columns)
        batch_rows = max(1, min(rows, batch_bytes * rows // max(1, size)))
        yield from file.iter_batches(
            batch_size=batch_rows,
            row_groups=list(numbers),
            columns=None if columns is None else list(columns),
            use_threads=False,
        )


def _arrow_footer(listed: InputFile) -> Footer:
    with mapped(listed.path, listed.options) as file_bytes:
        size = file_bytes.size()
        if size >= len(_FILE_MAGIC) and file_bytes.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
            file_bytes.seek(0)
            file = pa.ipc.open_file(file_bytes)
            count = file.num_record_batches
            even = size // count if count else 0
            return Footer(file.schema, (even,) * count)
        file_bytes.seek(0)
        return Footer(pa.ipc.open_stream(file_bytes).schema, None)


def _read_arrow(split: FileSplit) -> Iterator[pa.RecordBatch]:
    with mapped(split.file.path, split.file.options) as file_bytes:
        if file_bytes.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
            file_bytes.seek(0)
            file = pa.ipc.open_file(file_bytes)
            groups = split.row_groups
            numbers = range(file.num_record_batches) if groups is None else groups
            for number in numbers:
                yield file.get_batch(number)
        else:
            file_bytes.seek(0)
            yield from pa.ipc.open_stream(file_bytes)


def _open_csv(
    file: InputFile, schema: pa.Schema | None, options: Mapping[str, Any]
) -> pa.csv.CSVStreamingReader:
    header = bool(options.get("header", True))
    names = None if header or schema is None else schema.names
    return pa.csv.open_csv(
        text_stream(file.path, file.options),
        read_options=pa.csv.ReadOptions(
            use_threads=False,
            block_size=_TEXT_BLOCK_BYTES,
            column_names=names,
            autogenerate_column_names=not header and names is None,
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=str(options.get("delimiter", ",")), newlines_in_values=True
        ),
        # As Spark reads them: an empty field is null, a quoted empty one is an empty string.
        convert_options=pa.csv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _read_json(file: InputFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    parse = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    options = _json_options()
    text = text_stream(file.path, file.options)
    with pa.json.open_json(text, read_options=options, parse_options=parse) as stream:
        yield from stream


def _json_options() -> pa.json.ReadOptions:
    return pa.json.ReadOptions(use_threads=False, block_size=_TEXT_BLOCK_BYTES)


@contextmanager
def _naming(path: str, kind: str) -> Iterator[None]:
    """Name the file in every error about it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
        raise UserError(
            f"input file {path} cannot be read as {kind}: {text}\n"
            "  to fix: repair or leave out the file; for CSV and JSON, give schema= if types vary"
        ) from error
