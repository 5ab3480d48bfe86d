"""What an answer has to look like: a JSON Schema, its columns, and how an answer is read. Pure.

A dataclass, a pydantic model or a JSON Schema comes in. One JSON Schema comes out, which the
provider gets and answers are compared with, and the Arrow columns of its fields.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.llm.json_answers import check_keywords, resolved
from millrace.names import shown

Json = dict[str, Any]
_PLAIN: Final[dict[object, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}
_ARROW: Final = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_HOW: Final = (
    "give a dataclass with fields of str, int, float, bool, Literal, lists or such classes; a "
    "pydantic model; or a JSON Schema of an object"
)


class _Unclear(Exception):
    """The reason why a type gives no schema. Never leaves this module."""


def is_pydantic(given: object) -> bool:
    """Whether this is a class of pydantic's."""
    return isinstance(given, type) and hasattr(given, "model_json_schema")


def schema_of(call: str, given: object) -> Json:
    """The JSON Schema of `output=`; an error if it gives none."""
    try:
        return _checked(_schema(given))
    except (_Unclear, ValueError) as error:
        raise _no_schema(call, error) from None


def columns_of(call: str, schema: Json) -> pa.Schema:
    """The columns of an answer: one for each field of its root."""
    try:
        return pa.schema(_columns(schema))
    except _Unclear as error:
        raise _no_schema(call, error) from None


def _no_schema(call: str, error: Exception) -> UserError:
    return UserError(f"{call}: output says not what to answer\n  found: {error}\n  to fix: {_HOW}")


def _schema(given: object) -> Json:
    if isinstance(given, Mapping):
        return dict(given)
    if is_pydantic(given):
        schema: Json = typing.cast("Any", given).model_json_schema()
        return schema
    if isinstance(given, type) and dataclasses.is_dataclass(given):
        return _of_class(given)
    raise _Unclear(shown(given))


def _checked(schema: Json) -> Json:
    check_keywords(schema)
    if resolved(schema, schema).get("type") != "object":
        raise _Unclear("its root is no object")
    return schema


def _columns(schema: Json) -> list[pa.Field]:
    properties = resolved(schema, schema).get("properties", {})
    if not properties:
        raise _Unclear("an object without fields")
    return [pa.field(name, _arrow(schema, part, name)) for name, part in properties.items()]


def is_strict(schema: Json) -> bool:
    """Whether a provider can promise the schema: each object names all its fields and no others."""

    def holds(part: object) -> bool:
        if isinstance(part, Mapping):
            if part.get("type") == "object" and (
                part.get("additionalProperties") is not False
                or set(part.get("required", ())) != set(part.get("properties", {}))
            ):
                return False
            return all(holds(value) for value in part.values())
        if isinstance(part, Sequence) and not isinstance(part, str):
            return all(holds(value) for value in part)
        return True

    return holds(schema)


def _of_class(kind: type) -> Json:
    """The schema of a dataclass: all fields are required, null stands for a missing one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    return {
        "type": "object",
        "properties": {name: _of_hint(hints[name], f"{kind.__name__}.{name}") for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _of_hint(hint: object, where: str) -> Json:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        said = [text for text in inner[1:] if isinstance(text, str)]
        return _of_hint(inner[0], where) | ({"description": said[0]} if said else {})
    if origin is typing.Literal:
        return _of_values(inner, where)
    if origin in (typing.Union, types.UnionType):
        parts = [_of_hint(part, where) for part in inner if part is not type(None)]
        nothing: list[Json] = [{"type": "null"}] if type(None) in inner else []
        return {"anyOf": [*parts, *nothing]}
    if origin in (list, Sequence):
        return {"type": "array", "items": _of_hint(inner[0], where)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_values([member.value for member in hint], where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _of_class(hint)
    if hint not in _PLAIN:
        raise _Unclear(f"{where} is {getattr(hint, '__name__', hint)}")
    return {"type": _PLAIN[hint]}


def _of_values(values: Sequence[object], where: str) -> Json:
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or not kinds <= set(_PLAIN):
        raise _Unclear(f"{where} has values of several types, or of none that JSON has")
    return {"type": _PLAIN[kinds.pop()], "enum": list(values)}


def _arrow(root: Json, part: Json, where: str) -> pa.DataType:
    """The type of the column that holds a part of the answer."""
    part = resolved(root, part)
    if "anyOf" in part or isinstance(part.get("type"), list):
        return _of_several(root, part, where)
    if "const" in part and "type" not in part:
        part = {"enum": [part["const"]]}
    if "enum" in part and "type" not in part:
        part = _of_values([value for value in part["enum"] if value is not None], where)
    match part.get("type"):
        case "array":
            return pa.list_(_arrow(root, part.get("items", {}), f"{where}[]"))
        case "object":
            inner = part.get("properties", {})
            if not inner:
                raise _Unclear(f"{where} is an object without fields")
            return pa.struct([(n, _arrow(root, p, f"{where}.{n}")) for n, p in inner.items()])
        case str(plain) if plain in _ARROW:
            return _ARROW[plain]
        case other:
            raise _Unclear(f"{where} is of type {other!r}")


def _of_several(root: Json, part: Json, where: str) -> pa.DataType:
    """The one type that remains without null; whole and other numbers are numbers."""
    if isinstance(part.get("type"), list):
        choices: list[Json] = [{**part, "type": kind} for kind in part["type"]]
    else:
        choices = [resolved(root, choice) for choice in part["anyOf"]]
    kinds = [_arrow(root, choice, where) for choice in choices if choice.get("type") != "null"]
    if set(kinds) == {pa.int64(), pa.float64()}:
        return pa.float64()
    if len(set(kinds)) != 1:
        raise _Unclear(f"{where} is of several types")
    return kinds[0]
