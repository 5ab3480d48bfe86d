"""Statistics of a data file for the log: rows, nulls, least and largest values. Pure.

They come from the footer of the Parquet file. Readers skip files by them, so a bound that is not
sure is left out: of nested columns, of columns with NaN, of text that cannot be cut.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

INDEXED_COLUMNS: Final = 32
_TEXT_MAX: Final = 32
_LAST_LETTER: Final = "\U0010ffff"
_EXACT_DIGITS: Final = 15
"""Decimals of more digits are not exact for readers that take them for doubles."""
_YEARS: Final = (1, 9999)


def indexed_columns(names: Iterable[str], configuration: Mapping[str, str]) -> frozenset[str]:
    """The columns of a table whose statistics are kept, as its properties say."""
    chosen = configuration.get("delta.dataSkippingStatsColumns")
    if chosen is not None:
        return frozenset(name.strip().strip("`") for name in chosen.split(","))
    count = int(configuration.get("delta.dataSkippingNumIndexedCols", INDEXED_COLUMNS))
    every = list(names)
    return frozenset(every if count < 0 else every[:count])


def columns_with_nan(table: pa.Table) -> set[str]:
    """Columns that hold a NaN: no order of readers is the same for it."""
    return {
        field.name
        for field in table.schema
        if pt.is_floating(field.type) and pc.any(pc.is_nan(table[field.name])).as_py()
    }


def statistics(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    *,
    indexed: Collection[str],
    with_nan: Collection[str],
) -> str:
    """The statistics of a file, as JSON."""
    least: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        name = column.path
        position = schema.get_field_index(name)
        if position < 0 or name not in indexed or pt.is_nested(schema.field(position).type):
            continue
        if column.max_definition_level > 1:
            continue  # Part of a nested column, whose path is like the name of another one.
        groups = [
            metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)
        ]
        found = [group.statistics for group in groups]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        valued = [
            each
            for each, group in zip(found, groups, strict=True)
            if each.null_count < group.num_values
        ]
        bounds = _bounds(valued, schema.field(position).type, is_odd=name in with_nan)
        if bounds is not None:
            least[name], largest[name] = bounds
    rows = {"numRecords": metadata.num_rows}
    text = {**rows, "minValues": least, "maxValues": largest, "nullCount": nulls}
    return _json(text)


def _bounds(found: list[Any], kind: pa.DataType, *, is_odd: bool) -> tuple[Any, Any] | None:
    """The least and the largest value as the log has them; None if one of them is not sure."""
    if not found or is_odd or not all(each.has_min_max for each in found):
        return None
    try:
        least = min(each.min for each in found)
        largest = max(each.max for each in found)
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        return None  # Times that Python has no value for.
    if pt.is_boolean(kind) or pt.is_binary(kind) or pt.is_large_binary(kind):
        return None
    if isinstance(least, bytes):
        return None
    low, high = _value(least), _value(largest, is_upper=True)
    return None if low is None or high is None else (low, high)


def _value(value: Any, *, is_upper: bool = False) -> Any:  # noqa: ANN401 - of any column
    match value:
        case bool():
            return None
        case int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            sign, digits, _ = value.as_tuple()
            del sign
            return value if len(digits) <= _EXACT_DIGITS else None
        case datetime():
            return _time(value)
        case date():
            return value.isoformat() if _YEARS[0] <= value.year <= _YEARS[1] else None
        case str():
            return _text(value, is_upper=is_upper)
        case _:
            return None


def _time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _text(value: str, *, is_upper: bool) -> str | None:
    if len(value) <= _TEXT_MAX:
        return value
    if not is_upper:
        return value[:_TEXT_MAX]
    return None if value[_TEXT_MAX] == _LAST_LETTER else value[:_TEXT_MAX] + _LAST_LETTER


def _json(text: Mapping[str, Any]) -> str:
    """JSON with decimals as numbers of their own digits."""
    decimals: list[Decimal] = []

    def keep(value: object) -> str:
        assert isinstance(value, Decimal)
        decimals.append(value)
        return f"\0decimal {len(decimals) - 1}\0"

    made = json.dumps(text, default=keep)
    for number, value in enumerate(decimals):
        made = made.replace(json.dumps(f"\0decimal {number}\0"), format(value, "f"))
    return made
