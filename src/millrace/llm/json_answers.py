"""Compares a JSON value with a JSON Schema, of the keywords that are checked here. Pure.

Invariant: a keyword that is neither checked nor a mere remark is refused when the job is built, so
that no answer passes that the user's schema excludes.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Json = dict[str, Any]
_CHECKED: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("anyOf", "$ref", "$defs", "definitions", "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "minLength", "maxLength", "pattern", "minItems", "maxItems"),
    }
)
_REMARKS: Final = frozenset(
    ("title", "description", "default", "examples", "format", "$schema", "$id", "$comment")
)
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
_BOUNDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "minimum": operator.lt,
    "maximum": operator.gt,
    "exclusiveMinimum": operator.le,
    "exclusiveMaximum": operator.ge,
}
_DEPTH_MAX: Final = 64
_INT64: Final = 2**63


def check_keywords(schema: object, where: str = "its root") -> None:
    """Raise `ValueError` for a schema with a keyword that is not checked here."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} is {schema!r}, no schema")  # noqa: TRY004 - as for others
    strange = sorted(set(schema) - _CHECKED - _REMARKS)
    if strange:
        raise ValueError(f"{where} has {strange[0]!r}, which answers are not compared with")
    if schema.get("additionalProperties") not in (None, True, False):
        raise ValueError(f"{where} has fields of any name")
    for group in ("properties", "$defs", "definitions"):
        for name, part in schema.get(group, {}).items():
            check_keywords(part, name)
    for part in schema.get("anyOf", ()):
        check_keywords(part, where)
    if "items" in schema:
        check_keywords(schema["items"], f"{where}[]")


def resolved(root: Json, part: Json, depth: int = 0) -> Json:
    """A schema, or the one that it refers to."""
    reference = part.get("$ref")
    if reference is None:
        return part
    if depth > _DEPTH_MAX or not str(reference).startswith("#/"):
        raise ValueError(f"{reference!r} refers to nothing in the schema")
    found: Any = root
    for name in str(reference)[2:].split("/"):
        if not isinstance(found, Mapping) or name not in found:
            raise ValueError(f"{reference!r} refers to nothing in the schema")
        found = found[name]
    rest = {name: value for name, value in part.items() if name != "$ref"}
    return resolved(root, {**found, **rest}, depth + 1)


def parsed(text: str) -> tuple[Any, str]:
    """The JSON value of an answer and no complaint, or nothing and why it is none.

    A fence of Markdown around it is taken off: models without a schema of their own write it.
    """
    plain = text.strip()
    if plain.startswith("```") and plain.endswith("```"):
        plain = plain.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = json.loads(plain, parse_constant=_no_number)
    except ValueError as error:
        return None, f"the answer is not JSON: {error}"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return None, f"the answer has half of a surrogate pair: {error}"
    return value, ""


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def beyond_columns(value: object, where: str = "answer") -> str:
    """Where a value has a whole number that no column can hold; empty if nowhere."""
    match value:
        case int() if not -_INT64 <= value < _INT64:
            return f"{where} is {_shown(value)}, beyond the whole numbers of 64 bits"
        case dict():
            inner = (beyond_columns(each, f"{where}.{name}") for name, each in value.items())
        case list():
            inner = (beyond_columns(each, f"{where}[{n}]") for n, each in enumerate(value))
        case _:
            return ""
    return next(filter(None, inner), "")


def first_complaint(schema: Json, value: object) -> str:
    """What first breaks the schema; empty if nothing does."""
    return next(_complaints(schema, schema, value, "answer"), "")


def _complaints(root: Json, part: Json, value: object, where: str) -> Iterator[str]:
    part = resolved(root, part)
    if "anyOf" in part:
        several = [list(_complaints(root, choice, value, where)) for choice in part["anyOf"]]
        if all(several):
            yield several[0][0]
            return
    kinds = part.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds or list(_KINDS)
    if not any(_is_of(name, value) for name in names):
        yield f"{where} is {_shown(value)}, not {' or '.join(names)}"
        return
    if "enum" in part and not any(_same(value, known) for known in part["enum"]):
        yield f"{where} is {_shown(value)}, not one of {json.dumps(part['enum'])}"
    if "const" in part and not _same(value, part["const"]):
        yield f"{where} is {_shown(value)}, not {json.dumps(part['const'])}"
    match value:
        case dict():
            yield from _of_object(root, part, value, where)
        case list():
            yield from _of_size(part, len(value), "Items", where)
            for index, item in enumerate(value):
                yield from _complaints(root, part.get("items", {}), item, f"{where}[{index}]")
        case str():
            yield from _of_size(part, len(value), "Length", where)
            if "pattern" in part and not re.search(part["pattern"], value):
                yield f"{where} is {_shown(value)}, which {part['pattern']!r} does not match"
        case int() | float() if not isinstance(value, bool):
            yield from _of_number(part, value, where)
        case _:
            pass


def _of_object(root: Json, part: Json, value: Json, where: str) -> Iterator[str]:
    properties = part.get("properties", {})
    for name in part.get("required", ()):
        if name not in value:
            yield f"{where} has no {name!r}"
    for name, inner in value.items():
        if name in properties:
            yield from _complaints(root, properties[name], inner, f"{where}.{name}")
        elif part.get("additionalProperties") is False:
            yield f"{where} has {name!r}, which the schema does not"


def _of_size(part: Json, size: int, what: str, where: str) -> Iterator[str]:
    least, most = part.get(f"min{what}"), part.get(f"max{what}")
    if least is not None and size < least:
        yield f"{where} has a size of {size}, at least {least} is asked for"
    if most is not None and size > most:
        yield f"{where} has a size of {size}, at most {most} is asked for"


def _of_number(part: Json, value: float, where: str) -> Iterator[str]:
    for name, breaks in _BOUNDS.items():
        if name in part and breaks(value, part[name]):
            yield f"{where} is {value}, beyond the {name} of {part[name]}"


def _is_of(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(name, ()))


def _same(value: object, known: object) -> bool:
    return value == known and isinstance(value, bool) == isinstance(known, bool)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "..."  # noqa: PLR2004 - what a line has room for
