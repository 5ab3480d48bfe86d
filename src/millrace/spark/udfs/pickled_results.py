"""Results of functions that Spark calls without Arrow (`useArrow=False`), brought into their type.

Spark's JVM takes a pickled value of the wrong type as null, and does not convert it. A value whose
text would be Java's is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructType,
)

_BITS: Final = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


@dataclass(frozen=True, slots=True)
class PickledResults:
    """A function whose results are as Spark's JVM would take them from a pickle."""

    function: Callable[..., Any]
    type: DataType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's
        """The function's result in its type, or None."""
        return taken(self.function(*args, **kwargs), self.type)


def taken(value: Any, kind: DataType) -> Any:  # noqa: ANN401 - a case for each type
    """A value as Spark takes it for a type: null if it is of another one."""
    if value is None:
        return None
    match kind:
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _integer(value, _BITS[type(kind)])
        case FloatType() | DoubleType():
            return value if type(value) is float else None
        case BooleanType():
            return value if type(value) is bool else None
        case StringType():
            return _text(value)
        case BinaryType():
            return _binary(value)
        case DecimalType():
            return value if isinstance(value, Decimal) else None
        case DateType():
            return value.date() if isinstance(value, datetime) else _date(value)
        case ArrayType(elementType=element):
            return [taken(item, element) for item in value] if _is_list(value) else None
        case MapType(keyType=key, valueType=item):
            return _mapped(value, key, item)
        case StructType():
            return _fields(value, kind)
        case _:
            return value


def _integer(value: object, bits: int) -> int | None:
    """Java's long, cut to the width; a longer one is no whole number of Spark's."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        return None
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    raise TypeError(
        f"a function of type string returned {type(value).__name__}; return str(...) of it"
    )


def _binary(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _date(value: object) -> date:
    if isinstance(value, date):
        return value
    raise TypeError(f"a function of type date returned {type(value).__name__}")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _mapped(value: object, key: DataType, item: DataType) -> dict[Any, Any] | None:
    if not isinstance(value, dict):
        return None
    return {taken(name, key): taken(of, item) for name, of in value.items()}


def _fields(value: Any, kind: StructType) -> Any:  # noqa: ANN401 - the user's
    if isinstance(value, dict):
        values = [value.get(field.name) for field in kind]
    elif isinstance(value, Row) and hasattr(value, "__fields__"):
        by_name = value.asDict() if set(value.__fields__) == set(kind.names) else None
        values = [by_name[name] for name in kind.names] if by_name else list(value)
    elif isinstance(value, tuple | list):
        values = list(value)
    elif hasattr(value, "__dict__"):
        values = [value.__dict__.get(field.name) for field in kind]
    else:
        raise TypeError(f"a function of type struct returned {type(value).__name__}")
    return tuple(taken(item, field.dataType) for item, field in zip(values, kind, strict=True))
