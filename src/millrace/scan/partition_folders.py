"""Columns that stand in the names of folders: `orders/day=2024-05-01/part-0.parquet`. Pure.

Names are read as Spark reads them: the types of a column's values are inferred, and the type that
holds all of them is the column's. Invariant: the same paths give the same columns and values, and a
value has Spark's type, or the files are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value that stands for null."""
_INT_MAX: Final = 1 << 31
_LONG_MAX: Final = 1 << 63
_DIGITS_MAX: Final = 38
_LONG_DIGITS: Final = 20
_INT_DIGITS: Final = 10
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(
    r"[\x00-\x20]*([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
    r"[\x00-\x20]*"
)
_HEX_DOUBLE: Final = re.compile(
    r"[\x00-\x20]*([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
    r"[\x00-\x20]*"
)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9])?"
)
_TIME: Final = re.compile(r"([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,6})?")
_ESCAPED: Final = re.compile(r"%([0-9a-fA-F]{2})")
_TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
_YEAR_ZERO: Final = re.compile(r"0000-(0[1-9]|1[0-2])-[0-3][0-9]")
_UNSUPPORTED: Final = pa.time64("us")
"""Stands for times of day, and for days of the year 0, which Python has not."""


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """Columns of folders, and their values for each file.

    `as_text` are timestamps. Their values are given as text, because the session's time zone
    decides their meaning.
    """

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    as_text: frozenset[str] = frozenset()


def partition_columns(files: Sequence[str], bases: frozenset[str]) -> PartitionColumns:
    """The columns in the folders of files, below the folders that the user named.

    As in Spark, files outside of partition folders are not among the rows if there are any such
    folders: `values` has only the files to read. It is empty if there are no partition folders.
    """
    parsed = {file: _pairs(file, bases) for file in files}
    folders = {file: (base, pairs) for file, (base, pairs) in parsed.items() if pairs}
    if not folders:
        return PartitionColumns()
    names = _one_list_of_names(folders)
    raw = {file: [value for _, value in pairs] for file, (_, pairs) in folders.items()}
    kinds = [_common_type({values[n] for values in raw.values()}) for n in range(len(names))]
    for name, kind in zip(names, kinds, strict=True):
        if kind == _UNSUPPORTED:
            raise UserError(
                f"folders are partitioned by times of day or days of the year 0, in {name!r}\n"
                f"  found: {files[0]}\n  to fix: read them with Spark and pass the DataFrame"
            )
    columns = [_typed(kind, [values[n] for values in raw.values()]) for n, kind in enumerate(kinds)]
    text = {name for name, kind in zip(names, kinds, strict=True) if kind == _TIMESTAMP_TYPE}
    fields = [
        pa.field(name, pa.string() if name in text else kind)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return PartitionColumns(
        pa.schema(fields),
        dict(zip(raw, zip(*columns, strict=True), strict=True)),
        frozenset(text),
    )


def unescaped(name: str) -> str:
    """A name in a path, with the characters that were escaped as %3A."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def _pairs(file: str, bases: frozenset[str]) -> tuple[str, list[tuple[str, str]]]:
    """The names and values of a file's folders, and the folder that holds them.

    Folders are looked at upwards from the file: those next to one another that name a column.
    """
    pairs: list[tuple[str, str]] = []
    folder = os.path.dirname(file)
    while folder not in bases and folder != os.path.dirname(folder):
        above, segment = os.path.split(folder)
        name, sign, value = segment.partition("=")
        if sign:
            if not name or not value:
                what = "name of a column" if not name else "value"
                raise UserError(
                    f"a partition folder has no {what}\n  found: {folder}\n"
                    "  to fix: name folders column=value"
                )
            pairs.append((unescaped(name), value))
        elif pairs:
            break
        folder = above
    return folder, pairs[::-1]


def _one_list_of_names(
    folders: Mapping[str, tuple[str, Sequence[tuple[str, str]]]],
) -> tuple[str, ...]:
    """The names of the partition columns, which must be the same for all files."""
    bases = {base: file for file, (base, _) in folders.items()}
    if len(bases) > 1:
        shown = ", ".join(sorted(bases)[:3])
        raise UserError(
            f"partition folders are in several folders\n  found: {shown}\n"
            "  to fix: read each of these folders, then use union"
        )
    lists = {tuple(name for name, _ in pairs): file for file, (_, pairs) in folders.items()}
    if len(lists) > 1:
        shown = "; ".join(f"{', '.join(names)} in {file}" for names, file in lists.items())
        raise UserError(
            f"partition folders do not name the same columns\n  found: {shown[:500]}\n"
            "  to fix: keep files only in the innermost folders, all with the same columns"
        )
    (names,) = lists
    if len({name.lower() for name in names}) < len(names):
        raise UserError(
            f"partition folders name a column twice\n  found: {next(iter(folders))}\n"
            "  to fix: rename the folders"
        )
    return names


def _type_of(raw: str) -> pa.DataType:
    """The type of a value, as Spark infers it."""
    if raw == NULL_FOLDER:
        return pa.null()
    text = unescaped(raw)
    digits = _decimal_digits(raw)
    kinds: list[tuple[bool, pa.DataType]] = [
        (_is_whole(raw, _INT_MAX), pa.int32()),
        (_is_whole(raw, _LONG_MAX), pa.int64()),
        (digits is not None, pa.decimal128(digits or 1, 0)),
        (_DOUBLE.fullmatch(raw) is not None, pa.float64()),
        (_HEX_DOUBLE.fullmatch(raw) is not None, pa.float64()),
        (_is_timestamp(text), _TIMESTAMP_TYPE),
        (_DATE.fullmatch(text) is not None and _is_date(text), pa.date32()),
        (_TIME.fullmatch(text) is not None, _UNSUPPORTED),
        (_YEAR_ZERO.match(text) is not None, _UNSUPPORTED),
    ]
    return next((kind for fits, kind in kinds if fits), pa.string())


def _is_whole(raw: str, below: int) -> bool:
    return _INTEGER.fullmatch(raw) is not None and -below <= int(raw) < below


def _decimal_digits(raw: str) -> int | None:
    """The digits of a whole decimal such as 1E5; None if it is none, or has too many."""
    if "_" in raw or raw != raw.strip():
        return None
    try:
        value = Decimal(raw)
    except InvalidOperation:
        return None
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent > _DIGITS_MAX or exponent < 0:
        return None
    digits = len(str(abs(int(value))))
    return digits if digits <= _DIGITS_MAX else None


def _is_timestamp(text: str) -> bool:
    match = _TIMESTAMP.fullmatch(text)
    return match is not None and _is_date(match[1])


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _common_type(raw: set[str]) -> pa.DataType:
    """The type that holds all values of a column; text if there is no other."""
    kinds = sorted({_type_of(value) for value in raw} - {pa.null()}, key=str)
    if not kinds:
        return pa.null()
    common = kinds[0]
    for kind in kinds[1:]:
        common = _wider(common, kind)
    return common


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    digits = [_digits(kind) for kind in (one, other)]
    wide = pa.types.is_decimal(one) or pa.types.is_decimal(other)
    whole = [number for number in digits if number is not None]
    if len(whole) == len(digits):
        return pa.decimal128(max(whole), 0) if wide else pa.int64()
    if pa.float64() in (one, other) and len(whole) == 1 and not wide:
        return pa.float64()
    if {one, other} == {pa.date32(), _TIMESTAMP_TYPE}:
        return _TIMESTAMP_TYPE
    return pa.string()


def _digits(kind: pa.DataType) -> int | None:
    """The digits that a whole number of a type can have."""
    if pa.types.is_decimal(kind):
        return int(kind.precision)
    return {pa.int32(): _INT_DIGITS, pa.int64(): _LONG_DIGITS}.get(kind)


def _typed(kind: pa.DataType, raw: Sequence[str]) -> list[Any]:
    return [None if value == NULL_FOLDER else _value(kind, value) for value in raw]


def _value(kind: pa.DataType, raw: str) -> int | float | Decimal | date | str:
    if pa.types.is_integer(kind):
        return int(raw)
    if pa.types.is_decimal(kind):
        return Decimal(raw)
    if pa.types.is_floating(kind):
        match, hexadecimal = _DOUBLE.fullmatch(raw), _HEX_DOUBLE.fullmatch(raw)
        if match is not None:
            return float(match[1])
        assert hexadecimal is not None, "the type was inferred from the value"
        return float.fromhex(hexadecimal[1])
    if pa.types.is_date(kind):
        return date.fromisoformat(unescaped(raw))
    return unescaped(raw)
