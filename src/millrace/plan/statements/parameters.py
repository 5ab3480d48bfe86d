"""Parameters of a statement: `:name` and `?` become literals of the values that were given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from sqlglot import exp

from millrace.sql.parser import LITERAL, POSITION
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.text import listed

Arguments = Mapping[str, object] | Sequence[object] | None
_INT_MAX: Final = 2**31


def with_arguments(tree: exp.Expression, arguments: Arguments) -> exp.Expression:
    """The statement with a literal for each parameter."""
    named = dict(arguments) if isinstance(arguments, Mapping) else {}
    if isinstance(arguments, list | tuple):
        named = {f"{POSITION}{at}": value for at, value in enumerate(arguments)}

    def value(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Placeholder):
            return node
        if node.name in named:
            return literal(named[node.name])
        raise ExpressionRefused(
            f"the parameter {_shown(node.name)} has no value",
            found=f"args for {listed([_shown(name) for name in named]) or 'none'}",
            fix="give it in args: a mapping for names, a list for question marks",
        )

    return tree.transform(value)


def _shown(name: str) -> str:
    if name.startswith(POSITION):
        return f"? number {int(name.removeprefix(POSITION)) + 1}"
    return f":{name}"


def literal(value: object) -> exp.Expression:
    """A value of Python as Spark's literal of it."""
    match value:
        case exp.Expression():
            return value
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int() | float() | Decimal():
            return _number(value)
        case str():
            return exp.Literal.string(value)
        case bytes():
            return exp.HexString(this=value.hex())
        case datetime():
            # As in Spark, a time without a zone is one of this process's zone.
            instant = value.astimezone(UTC).isoformat(sep=" ")
            return _cast(exp.Literal.string(instant), "timestamp")
        case date():
            return _cast(exp.Literal.string(value.isoformat()), "date")
        case list() | tuple():
            return exp.Anonymous(this="array", expressions=[literal(part) for part in value])
        case _:
            raise NotNative(
                "a parameter of this type has no literal",
                found=f"{value!r} of type {type(value).__name__}",
                fix="give a number, text, date, time, bytes, a list of these, or None",
            )


def _number(value: float | Decimal) -> exp.Expression:
    """A number as a literal of int, bigint, double or decimal."""
    if not math.isfinite(value):
        return _cast(exp.Literal.string(str(value)), "double")
    if isinstance(value, int):
        suffix = "" if -_INT_MAX <= value < _INT_MAX else "L"
        digits = str(abs(value))
    else:
        suffix = "D" if isinstance(value, float) else "BD"
        digits = repr(abs(value)) if isinstance(value, float) else f"{abs(value):f}"
    number: exp.Expression = exp.Literal.number(digits)
    number = _suffixed(suffix, number) if suffix else number
    return exp.Neg(this=number) if value < 0 else number


def _suffixed(suffix: str, number: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=LITERAL + suffix, expressions=[number])


def _cast(value: exp.Expression, kind: str) -> exp.Expression:
    return exp.Cast(this=value, to=exp.DataType.build(kind, dialect="spark"))
