"""Folders for the values of columns, as Spark writes them: `day=2024-05-01/name=a%2Fb/`. Pure.

Invariant: `partition_folders` and Spark read the values back that the rows had. Names are those
that Spark writes, but where a value begins with a character to escape: Spark leaves all of that
value as it is, a slash included. A type whose text would depend on a session or on Java is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.errors import UnsupportedType, UserError
from millrace.names import existing
from millrace.scan.partition_folders import NULL_FOLDER
from millrace.text import counted

_ESCAPED: Final = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"])
"""The characters that Spark escapes."""
_ZERO: Final = "\0"
_DAY_MIN: Final = -719_162
_DAY_MAX: Final = 2_932_896
"""The years 1 to 9999."""


def check_partition_by(call: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns that no folder can be named by, and rows that have no others."""
    for name in columns:
        if name not in schema.names:
            raise UserError(
                f"{call}: there is no column {name!r} to partition by\n"
                f"  found: {existing(name, schema.names)}\n  to fix: give one of these"
            )
        if name.startswith("."):
            raise UserError(
                f"{call}: folders of column {name!r} would be hidden\n  found: a point in front\n"
                "  to fix: rename the column"
            )
        kind = schema.field(name).type
        if not names_folders(kind):
            raise UnsupportedType(
                f"{call}: folders cannot be named by column {name!r}\n  found: {kind}\n"
                "  to fix: select a date, CAST(column AS STRING) or CAST(column AS DATE), and "
                "partition by that"
            )
    if len(set(columns)) < len(columns):
        raise UserError(
            f"{call}: a column is named twice in partition_by\n  found: {', '.join(columns)}\n"
            "  to fix: name it once"
        )
    if columns and set(columns) == set(schema.names):
        raise UserError(
            f"{call}: nothing is left to be in the files\n"
            f"  found: all columns in partition_by: {', '.join(columns)}\n"
            "  to fix: partition by fewer columns"
        )


def names_folders(kind: pa.DataType) -> bool:
    """Whether folders can be named by values of a type."""
    is_text = pt.is_string(kind) or pt.is_large_string(kind)
    return bool(pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date32(kind) or is_text)


def by_folder(
    rows: pa.Table, columns: Sequence[str], folders_max: int, call: str
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each folder, in their order, without the columns in its name."""
    if not rows.num_rows:
        return
    paths = _paths(rows, columns, call).combine_chunks().dictionary_encode()
    if len(paths.dictionary) > folders_max:
        raise UserError(
            f"{call}: too many partition folders in one commit\n"
            f"  found: {counted(len(paths.dictionary), 'folder')}, at most {folders_max}\n"
            "  to fix: partition by columns with fewer values, or raise partition_folders_max"
        )
    codes = np.asarray(paths.indices)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(paths.dictionary)))
    sorted_rows = rows.drop_columns(list(columns)).take(pa.array(order))
    begin = 0
    for path, end in zip(paths.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield path, sorted_rows.slice(begin, end - begin)
        begin = end


def _paths(rows: pa.Table, columns: Sequence[str], call: str) -> pa.ChunkedArray:
    """The folder of each row."""
    parts = [_part(rows[name], name, call) for name in columns]
    return (
        pc.binary_join_element_wise(*parts, pa.scalar("/", pa.large_string()))
        if len(parts) > 1
        else parts[0]
    )


def _part(values: pa.ChunkedArray, name: str, call: str) -> pa.ChunkedArray:
    """`column=value` for each row; only different values are looked at one by one."""
    if pt.is_date32(values.type):
        _check_days(values, name, call)
    coded = values.cast(pa.large_string()).combine_chunks().dictionary_encode("encode")
    names = pa.array(
        [f"{escaped(name)}={_text(value, name, call)}" for value in coded.dictionary.to_pylist()],
        pa.large_string(),
    )
    return pa.chunked_array([names.take(coded.indices)])


def _text(value: str | None, name: str, call: str) -> str:
    if not value:
        return NULL_FOLDER
    if _ZERO in value:
        raise UserError(
            f"{call}: a value of column {name!r} cannot name a folder\n  found: a zero byte\n"
            "  to fix: filter or change such rows"
        )
    return escaped(value)


def escaped(text: str) -> str:
    """A name of a column or a value, as Spark writes it into a path."""
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text)


def _check_days(days: pa.ChunkedArray, name: str, call: str) -> None:
    ends = pc.min_max(days.cast(pa.int32())).as_py()
    if ends["min"] is not None and (ends["min"] < _DAY_MIN or ends["max"] > _DAY_MAX):
        raise UserError(
            f"{call}: a day of column {name!r} cannot name a folder\n"
            "  found: one before the year 1 or behind the year 9999\n"
            "  to fix: filter such rows, or partition by CAST(column AS STRING)"
        )
