"""The columns that a function returns: from a schema, Spark DDL, or a type hint. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from millrace.errors import UserError
from millrace.identity.schemas import check_names, plain_schema
from millrace.journal.core.row_format import PREFIX, reserved_names
from millrace.sql.name_checks import check_distinguishable

_PLAIN: Final[dict[object, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", "UTC"),
    dt.date: pa.date32(),
}
_DDL: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}
_MANY: Final = (list, Iterator, Iterable, Sequence, typing.Generator, tuple)
_HOW: Final = (
    'say what it returns: schema="id bigint, score double", a pa.schema([...]), or a hint such as '
    "-> Caption, -> list[Caption] or -> Caption | None, Caption being a dataclass"
)


class Unclear(Exception):
    """The reason why a hint gives no columns. Never leaves this package."""


def given_schema(call: str, given: object) -> pa.Schema:
    """The columns of `schema=`."""
    match given:
        case pa.Schema():
            schema = given
        case str():
            schema = _from_ddl(call, given)
        case _:
            raise UserError(f"{call}: schema is a {type(given).__name__}\n  to fix: {_HOW}")
    return checked(call, schema)


def checked(call: str, schema: pa.Schema) -> pa.Schema:
    """The columns as journals store them; an error if they cannot."""
    if not schema.names:
        raise UserError(f"{call}: schema has no columns\n  to fix: name at least one")
    reserved = reserved_names(schema.names)
    if reserved:
        raise UserError(
            f"{call}: column {reserved[0]!r} begins with {PREFIX}, as Millrace's own do\n"
            "  to fix: choose another name"
        )
    check_names(schema)
    check_distinguishable(schema.names)
    return plain_schema(schema)


def hinted_schema(call: str, hint: object) -> pa.Schema:
    """The columns of a return annotation."""
    try:
        return checked(call, pa.schema(_fields(_row_type(hint))))
    except Unclear as unclear:
        raise UserError(
            f"{call}: what the function returns is not known\n  found: {unclear}\n  to fix: {_HOW}"
        ) from None


def is_one_row(hint: object) -> bool:
    """Whether a return annotation promises one row, or one row or None."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return is_one_row(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return len(kinds) == 1 and is_one_row(kinds[0])
    kind = origin or hint
    return isinstance(kind, type) and (
        issubclass(kind, Mapping) or dataclasses.is_dataclass(kind) or _is_named_tuple(kind)
    )


def _row_type(hint: object) -> object:
    """The type of one row, inside lists, iterators and `| None`."""
    if hint is None or hint is Any:
        raise Unclear("no type hint" if hint is None else "Any")
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _row_type(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _row_type(_not_none(hint))
    if origin in _MANY or getattr(origin, "__origin__", None) in _MANY:
        return _row_type(typing.get_args(hint)[0])
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, dict):
        return _row_type(typing.get_args(hint)[0])
    return hint


def _not_none(hint: object) -> object:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if len(kinds) != 1:
        raise Unclear(f"{_shown(hint)}, which is one of several types")
    return kinds[0]


def _fields(kind: object) -> list[pa.Field]:
    """Columns of a class that names its fields."""
    named = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or _is_named_tuple(kind)
    )
    if not named:
        raise Unclear(_shown(kind))
    assert isinstance(kind, type)
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise Unclear(f"{kind.__name__}, of which {error}") from None
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = list(getattr(kind, "_fields", hints))
    return [pa.field(name, _arrow(hints[name], f"{kind.__name__}.{name}")) for name in names]


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _arrow(hint: object, where: str) -> pa.DataType:
    """The type of one field."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return _arrow(typing.get_args(hint)[0], where)
    if origin in (typing.Union, types.UnionType):
        return _arrow(_not_none(hint), where)
    if origin in (list, Sequence):
        return pa.list_(_arrow(typing.get_args(hint)[0], where))
    if hint is decimal.Decimal:
        raise Unclear(f"{where} is a Decimal, whose digits a hint does not tell")
    if hint in _PLAIN:
        return _PLAIN[hint]
    try:
        return pa.struct(_fields(hint))
    except Unclear:
        raise Unclear(f"{where}: {_shown(hint)}") from None


def _shown(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _from_ddl(call: str, text: str) -> pa.Schema:
    """The columns of Spark DDL such as `id bigint, tags array<string>`."""
    try:
        return pa.schema([(column.name, _ddl_type(column.kind)) for column in _ddl_columns(text)])
    except (sqlglot.errors.SqlglotError, AttributeError, Unclear) as error:
        problem = str(error) if isinstance(error, Unclear) else repr(text)
        raise UserError(
            f"{call}: schema is not Spark's DDL\n  found: {problem}\n"
            '  to fix: write "id bigint, score double, tags array<string>", or pa.schema([...])'
        ) from None


def _ddl_columns(text: str) -> list[Any]:
    tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="spark")
    columns = tree.this.expressions if isinstance(tree, exp.Create) else []
    if not columns or not all(isinstance(c, exp.ColumnDef) and c.kind for c in columns):
        raise Unclear(repr(text))
    return list(columns)


def _ddl_type(kind: exp.DataType) -> pa.DataType:
    name = kind.this.value if isinstance(kind.this, exp.DataType.Type) else str(kind.this)
    inner = kind.expressions
    if name == "DECIMAL":
        digits = [int(str(part.this)) for part in inner] or [10, 0]
        return pa.decimal128(digits[0], digits[1] if len(digits) > 1 else 0)
    if name == "ARRAY":
        return pa.list_(_ddl_type(inner[0]))
    if name == "MAP":
        return pa.map_(_ddl_type(inner[0]), _ddl_type(inner[1]))
    if name == "STRUCT":
        return pa.struct([(part.name, _ddl_type(part.kind)) for part in inner])
    if name not in _DDL:
        raise Unclear(f"the type {name.lower()}")
    return _DDL[name]
