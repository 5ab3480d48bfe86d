"""Literals and types of Spark Connect's messages, as trees and names of Spark SQL."""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from millrace.sql.labels.spark_labels import SPARK_NAME
from millrace.sql.parser import LITERAL
from millrace.sql.typed_sql import NotNative

_EPOCH: Final = date(1970, 1, 1)
_PLAIN_TYPES: Final = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "null": "VOID",
    "variant": "VARIANT",
    "calendar_interval": "INTERVAL",
}
_SPECIAL: Final = {"bools": "boolean", "ints": "integer", "longs": "long", "floats": "float"}


def type_text(message: Any) -> str:  # noqa: ANN401 - a message of Spark Connect
    """A data type as Spark SQL writes it."""
    kind = message.WhichOneof("kind")
    value = getattr(message, kind)
    if kind in _PLAIN_TYPES:
        return _PLAIN_TYPES[kind]
    match kind:
        case "decimal":
            return f"DECIMAL({value.precision}, {value.scale})"
        case "array":
            return f"ARRAY<{type_text(value.element_type)}>"
        case "map":
            return f"MAP<{type_text(value.key_type)}, {type_text(value.value_type)}>"
        case "struct":
            fields = [f"{_quoted(f.name)}: {type_text(f.data_type)}" for f in value.fields]
            return f"STRUCT<{', '.join(fields)}>"
        case "char" | "var_char":
            return f"{'CHAR' if kind == 'char' else 'VARCHAR'}({value.length})"
        case "unparsed":
            return str(value.data_type_string)
        case _:
            raise NotNative(f"the type {kind} has no form here", fix="cast it in Spark")


def literal_tree(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    """A literal as a tree."""
    kind = message.WhichOneof("literal_type")
    value = getattr(message, kind)
    if kind in _TREES:
        tree: exp.Expression = _TREES[kind](value)
        return tree
    if kind in ("array", "map", "struct", "specialized_array"):
        return _nested(kind, value)
    raise NotNative(f"a literal of type {kind} has no form here", fix="use an expression of it")


def _null(kind: Any) -> exp.Expression:  # noqa: ANN401 - as above
    name = "VOID" if kind.WhichOneof("kind") is None else type_text(kind)
    return exp.Null() if name == "VOID" else cast_tree(exp.Null(), name)


def cast_tree(tree: exp.Expression, type_name: str, *, safe: bool = False) -> exp.Expression:
    """A cast to a type that is named as in Spark SQL; a safe one gives null where it fails."""
    is_void = type_name.strip().lower() == "void"
    kind = exp.DataType.build("NULL" if is_void else type_name, dialect="spark")
    return exp.TryCast(this=tree, to=kind, safe=True) if safe else exp.TryCast(this=tree, to=kind)


def number_tree(text: str, suffix: str = "") -> exp.Expression:
    """A number, with Spark's suffix for its type."""
    negative = text.startswith("-")
    tree: exp.Expression = exp.Literal.number(text.lstrip("-"))
    if suffix:
        tree = exp.Anonymous(this=LITERAL + suffix, expressions=[tree])
    return exp.Neg(this=tree) if negative else tree


def _double(value: float) -> exp.Expression:
    if math.isnan(value) or math.isinf(value):
        return cast_tree(exp.Literal.string(str(value)), "DOUBLE")
    return number_tree(repr(value), "D")


def _float(value: float) -> exp.Expression:
    inner = exp.Literal.string(str(value)) if not math.isfinite(value) else _double(value)
    return cast_tree(inner, "FLOAT")


def _decimal(value: Any) -> exp.Expression:  # noqa: ANN401 - as above
    """Spark takes the digits that the value has, or those that are given if they are more."""
    digits, exponent = Decimal(value.value).as_tuple()[1:]
    assert isinstance(exponent, int), "Spark's decimals are finite"
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale)
    if value.HasField("precision"):
        precision = max(precision, value.precision)
    if value.HasField("scale"):
        scale = max(scale, value.scale)
    text = exp.Literal.string(value.value)
    tree = cast_tree(text, f"DECIMAL({max(precision, scale)}, {scale})")
    tree.meta[SPARK_NAME] = number_tree(value.value)
    return tree


def _date(days: int) -> exp.Expression:
    try:
        text = (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return _call("date_from_unix_date", number_tree(str(days)))
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build("DATE"))


def _day_time(micros: int) -> exp.Expression:
    whole, rest = divmod(abs(micros), 1_000_000)
    seconds = number_tree(f"{'-' if micros < 0 else ''}{whole}.{rest:06d}", "BD")
    zero = exp.Literal.number("0")
    return _call("make_dt_interval", zero, zero.copy(), zero.copy(), seconds)


def _nested(kind: str, value: Any) -> exp.Expression:  # noqa: ANN401 - as above
    if kind == "array":
        return _call("array", *map(literal_tree, value.elements))
    if kind == "map":
        pairs = zip(value.keys, value.values, strict=True)
        return _call("map", *(literal_tree(part) for pair in pairs for part in pair))
    if kind == "struct":
        fields = zip(value.struct_type.struct.fields, value.elements, strict=True)
        parts = [p for f, e in fields for p in (exp.Literal.string(f.name), literal_tree(e))]
        return _call("named_struct", *parts)
    special = value.WhichOneof("value_type")
    build = _TREES[_SPECIAL.get(special, special.rstrip("s"))]
    return _call("array", *map(build, getattr(value, special).values))


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_TREES: Final[dict[str, Any]] = {
    "null": _null,
    "binary": lambda value: exp.HexString(this=value.hex()),
    "boolean": lambda value: exp.Boolean(this=value),
    "byte": lambda value: cast_tree(number_tree(str(value)), "TINYINT"),
    "short": lambda value: cast_tree(number_tree(str(value)), "SMALLINT"),
    "integer": lambda value: number_tree(str(value)),
    "long": lambda value: number_tree(str(value), "L"),
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "string": exp.Literal.string,
    "date": _date,
    "timestamp": lambda value: _call("timestamp_micros", number_tree(str(value), "L")),
    "timestamp_ntz": lambda value: _call(
        "dateadd",
        exp.Var(this="MICROSECOND"),
        number_tree(str(value), "L"),
        cast_tree(exp.Literal.string("1970-01-01"), "TIMESTAMP_NTZ"),
    ),
    "year_month_interval": lambda value: _call(
        "make_ym_interval", exp.Literal.number("0"), number_tree(str(value))
    ),
    "day_time_interval": _day_time,
}
