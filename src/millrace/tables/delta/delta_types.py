"""Types of Delta tables and of Arrow, and the columns of a table as the log has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import SchemaMismatch, UnsupportedType, UserError

DeltaType = str | Mapping[str, Any]
_PLAIN: Final = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
_ARROW: Final = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NOT_IN_NAMES: Final = " ,;{}()\n\t="
_DECIMAL_DIGITS_MAX: Final = 38
NOT_PARTITIONS: Final = ("float", "double", "binary")
"""Types whose values as the text of a partition readers disagree about."""


def delta_fields(schema: pa.Schema, *, who: str) -> list[dict[str, Any]]:
    """Columns as the log has them; refuses types and names that Delta does not have."""
    for field in schema:
        if any(letter in field.name for letter in _NOT_IN_NAMES):
            raise UserError(
                f"{who}: a column of a Delta table cannot be named {field.name!r}\n"
                f"  found: one of {_NOT_IN_NAMES!r}\n"
                f'  to fix: give it another name, as in select("`{field.name}` AS name")'
            )
    return [_field(field, who=who) for field in schema]


def delta_type(kind: pa.DataType, *, name: str, who: str) -> DeltaType:
    """The type of a column in a table."""
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if pt.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision <= _DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_struct(kind):
        return {"type": "struct", "fields": [_field(inner, who=who) for inner in kind]}
    if pt.is_list(kind) or pt.is_large_list(kind):
        element = delta_type(kind.value_type, name=name, who=who)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pt.is_map(kind):
        return {
            "type": "map",
            "keyType": delta_type(kind.key_type, name=name, who=who),
            "valueType": delta_type(kind.item_type, name=name, who=who),
            "valueContainsNull": True,
        }
    raise UnsupportedType(
        f"{who}: column {name!r} cannot be written to a Delta table\n  found: {kind}\n"
        "  to fix: select it as another type first, as with CAST"
    )


def arrow_type(kind: DeltaType, *, name: str, who: str) -> pa.DataType:
    """The type of a table's column in Arrow; refuses one that is not known."""
    if isinstance(kind, str):
        if kind in _ARROW:
            return _ARROW[kind]
        if kind.startswith("decimal("):
            precision, _, scale = kind[len("decimal(") : -1].partition(",")
            return pa.decimal128(int(precision), int(scale or 0))
    elif kind["type"] == "struct":
        inner = [
            pa.field(field["name"], arrow_type(field["type"], name=name, who=who))
            for field in kind["fields"]
        ]
        return pa.struct(inner)
    elif kind["type"] == "array":
        return pa.list_(arrow_type(kind["elementType"], name=name, who=who))
    elif kind["type"] == "map":
        return pa.map_(
            arrow_type(kind["keyType"], name=name, who=who),
            arrow_type(kind["valueType"], name=name, who=who),
        )
    raise UnsupportedType(
        f"{who}: column {name!r} has a type that is not known here\n"
        f"  found: {shown_type(kind)}\n  to fix: leave it out with Spark, or read with Spark"
    )


def shown_type(kind: DeltaType) -> str:
    """A type as people write it."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            inner = ", ".join(f"{f['name']}: {shown_type(f['type'])}" for f in kind["fields"])
            return f"struct<{inner}>"
        case "array":
            return f"array<{shown_type(kind['elementType'])}>"
        case "map":
            return f"map<{shown_type(kind['keyType'])}, {shown_type(kind['valueType'])}>"
        case other:
            return str(other)


def check_columns_fit(
    own: Sequence[Mapping[str, Any]], table: Sequence[Mapping[str, Any]], *, who: str, where: str
) -> None:
    """Refuse columns that a table does not have, or has with another type, or needs."""
    by_name = {field["name"]: field for field in table}
    lowered = {name.lower(): name for name in by_name}
    for field in own:
        name = field["name"]
        there = by_name.get(name)
        if there is None:
            near = lowered.get(name.lower())
            fix = f"name it {near!r}" if near else "leave it out, or add it to the table first"
            raise _misfit(who, where, f"column {name!r} is not in the table", by_name, fix)
        if shown_type(there["type"]) != shown_type(field["type"]):
            found = f"column {name!r} is {shown_type(field['type'])}"
            fix = f"select it as the table's type: {shown_type(there['type'])}"
            raise _misfit(who, where, found, {name: there}, fix)
    given = {field["name"] for field in own}
    for name, field in by_name.items():
        if name not in given and not field.get("nullable", True):
            found = f"column {name!r} of the table allows no nulls, and is not there"
            raise _misfit(who, where, found, {name: field}, "add it")


def _misfit(
    who: str, where: str, found: str, table: Mapping[str, Mapping[str, Any]], fix: str
) -> SchemaMismatch:
    columns = ", ".join(f"{name} {shown_type(f['type'])}" for name, f in table.items())
    return SchemaMismatch(
        f"{who} does not fit the table {where}\n  found: {found}\n"
        f"  the table has: {columns}\n  to fix: {fix}"
    )


def _field(field: pa.Field, *, who: str) -> dict[str, Any]:
    kind = delta_type(field.type, name=field.name, who=who)
    return {"name": field.name, "type": kind, "nullable": True, "metadata": {}}
