"""The state of a value as simpler values.

Invariant: a value has parts only if these are all of its state. Instances of a class written in
Python hold state in `__dict__`, in slots and in the built-in type that it extends. A type whose
layout has room for more has no parts here.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import functools
import operator
import pathlib
import re
import sys
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
ARRAY_BYTES_MAX: Final = 256 * 1024 * 1024
_HINTS: Final = ("typing", "types", "collections.abc")
_POINTER_BYTES: Final = 8
_TupleField: Final = collections._tuplegetter  # type: ignore[attr-defined]  # noqa: SLF001
_REDUCED: Final = (
    collections.deque,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    dt.timezone,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    uuid.UUID,
    zoneinfo.ZoneInfo,
    operator.itemgetter,
    range,
    slice,
    bytearray,
    BaseException,
    _TupleField,
)  # fmt: skip
"""Types of the standard library that tell all of their state when they are pickled."""
_CONTAINERS: Final = (tuple, list, dict, set, frozenset, collections.OrderedDict)
_EXACT: Final[Mapping[type, Callable[[Any], object]]] = {
    int: int.__pos__,
    float: float.__pos__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}
"""The plain value of an object of a class that extends a plain type and redefines parts of it."""
_PICKLING: Final = frozenset({"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__"})
_BASES: Final = (*PLAIN, *_CONTAINERS, *_REDUCED, collections.defaultdict, property, object)


class NoParts(Exception):
    """A value's state is unknown. Never leaves this package."""


def parts_of(value: object) -> list[Any] | None:
    """All of a value's state as simpler values, without its type; None if unknown."""
    special = _special_parts(value)
    if special is not None:
        return special
    try:
        base = _built_in_base(type(value))
        return [*_content(value, base), *_attributes(value)]
    except NoParts:
        return None


def is_unordered(value: object) -> bool:
    """Whether the order of a value's elements depends on the process."""
    return issubclass(type(value), (set, frozenset))


def _special_parts(value: Any) -> list[Any] | None:  # noqa: ANN401 - any value
    kind = type(value)
    if kind is re.Pattern:
        return [value.pattern, value.flags]
    if kind is types.MappingProxyType:
        return [dict(value)]
    if kind is functools.partial:
        return [value.func, value.args, value.keywords, vars(value)]
    if kind is functools.partialmethod:
        return [value.func, value.args, value.keywords]
    if kind in (staticmethod, classmethod):
        return [value.__func__, vars(value)]
    if kind is functools.cached_property:
        return [value.func, value.attrname]
    if kind is functools._lru_cache_wrapper:  # noqa: SLF001 - it has no other name
        return [value.__wrapped__, value.cache_parameters()]
    if kind.__module__ in _HINTS:
        return _hint_parts(value)
    return _library_parts(value)


def _hint_parts(value: object) -> list[Any] | None:
    """Types as they are in annotations."""
    origin = typing.get_origin(value)
    if origin is not None:
        return [origin, *typing.get_args(value)]
    match value:
        case typing.TypeVar():
            return [value.__name__, value.__bound__, value.__constraints__]
        case typing.ForwardRef():
            return [value.__forward_arg__]
        case typing.NewType():
            return [value.__name__, value.__supertype__]
        case typing.ParamSpec():
            return [value.__name__]
        case _:
            return None


def _library_parts(value: Any) -> list[Any] | None:  # noqa: ANN401 - any value
    """Arrow's types and numpy's arrays, where these libraries are loaded."""
    kind = type(value)
    top = kind.__module__.partition(".")[0]
    library: Any = sys.modules.get(top)
    if top == "pyarrow" and library is not None:
        if isinstance(value, library.DataType):
            value = library.field("", value)
        if isinstance(value, library.Field):
            value = library.schema([value])
        if isinstance(value, library.Schema):
            return [value.serialize().to_pybytes()]
    if top == "numpy" and library is not None:
        if kind is library.ndarray and not value.dtype.hasobject:
            if value.nbytes > ARRAY_BYTES_MAX:
                return None
            return [str(value.dtype.descr), value.shape, value.tobytes()]
        if isinstance(value, library.generic) and not isinstance(value, library.object_):
            return [str(value.dtype.descr), value.tobytes()]
        if isinstance(value, library.dtype) and not value.hasobject:
            return [str(value.descr)]
    return None


def _built_in_base(kind: type) -> type:
    """The type that keeps what is not in attributes; raises where a layout has more room."""
    for klass in kind.__mro__:
        if klass in _BASES:
            return klass
        if not _is_accounted_for(klass):
            raise NoParts
    raise AssertionError("every class is an object")


def _is_accounted_for(klass: type) -> bool:
    """Whether all room that a class adds to instances is for its attributes."""
    base = klass.__base__
    assert base is not None, "only object has none, and it is a base itself"
    room = klass.__basicsize__ - base.__basicsize__
    own = vars(klass)
    attributes = len(_slots(klass)) + ("__dict__" in own) + ("__weakref__" in own)
    return room <= _POINTER_BYTES * attributes


def _content(value: Any, base: type) -> list[Any]:  # noqa: ANN401 - any value
    """What a value of a built-in type, or of a class that extends one, holds as such."""
    if base is object:
        return []
    if base is property:
        return [value.fget, value.fset, value.fdel]
    if base is collections.defaultdict:
        return [value.default_factory, dict(value.items())]
    if base in _EXACT:
        return [_EXACT[base](value)]
    if base in (tuple, list, set, frozenset):
        return [base.__len__(value), *base.__iter__(value)]
    if base in (dict, collections.OrderedDict):
        items = base.items(value)
        return [base.__len__(value), *(part for item in items for part in item)]
    if base is BaseException:
        return [value.args]
    return _reduced(value, base)


def _reduced(value: object, base: type) -> list[Any]:
    for klass in type(value).__mro__[: type(value).__mro__.index(base)]:
        if _PICKLING & vars(klass).keys():
            raise NoParts  # Its author says what is pickled, and may leave something out.
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [reduced]
    return [list(part) if isinstance(part, Iterator) else part for part in reduced[1:]]


def _attributes(value: object) -> list[Any]:
    """Attributes in `__dict__` and in slots, slots with their names."""
    parts: list[Any] = []
    for klass in type(value).__mro__:
        if "__dict__" in vars(klass):
            parts.append(dict(vars(klass)["__dict__"].__get__(value)))
        if klass in _BASES:
            break
        for name, slot in _slots(klass):
            try:
                parts += [name, slot.__get__(value)]
            except AttributeError:
                parts += [name, "unset"]
    return parts


def _slots(klass: type) -> list[tuple[str, Any]]:
    home = (
        (name, member)
        for name, member in vars(klass).items()
        if isinstance(member, types.MemberDescriptorType)
    )
    return sorted(home, key=lambda pair: pair[0])
