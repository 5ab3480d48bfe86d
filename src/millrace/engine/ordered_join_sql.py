"""Ordered values in DuckDB's SQL: compared, shifted by an offset, put into buckets.

Invariant: shifting a value fails only where Spark fails too, and buckets have the order of their
values.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from millrace.plan.nodes.ordered_joins import OrderedJoin
from millrace.sql.functions.dates import Span, shifted
from millrace.sql.name_checks import free_name
from millrace.sql.ordered_offsets import LONG_MAX, LONG_MIN, Offset, width
from millrace.sql.typed_sql import TypedSql, as_type, quoted
from millrace.sql.types import DATE, DOUBLE, LONG, SqlType, decimal

_WIDTH_MAX: Final = 1 << 62
_FLOAT_WIDTH_MAX: Final = 1e290
"""Values that wide apart are not worth buckets, and would leave the numbers there are."""
_FLOAT_BUCKETS_MAX: Final = 1 << 46
"""Within so many buckets rounding moves a value by far less than a quarter of one."""
_ROUNDING: Final = 1.25


def comparable(sql: str, kind: SqlType) -> str:
    """A column's value in the type in which values are compared."""
    if kind.is_integer:
        return as_type(sql, LONG)
    return as_type(sql, DOUBLE if kind.is_floating else kind)


def shifted_value(sql: str, kind: SqlType, by: Offset, *, low: bool) -> str:
    """A value plus an offset, as the low or the high end of an interval.

    A whole number that leaves its type becomes the end of the type, or null if the whole interval
    is beyond it.
    """
    if isinstance(by, Span):
        term = TypedSql(sql=sql, type=kind)
        for part in (Span(months=by.months), Span(days=by.days), Span(micros=by.micros)):
            term = term if part == Span() else shifted(term, part, 1)
        return term.sql
    if isinstance(by, Decimal):
        kind = decimal(max(len(by.as_tuple().digits), kind.scale, 1), kind.scale)
        return f"({sql} + {_literal(f'{by:f}', kind)})"
    if isinstance(by, float):
        return f"({sql} + {_literal(repr(by), DOUBLE)})"
    nothing = "CAST(NULL AS BIGINT)"
    if by >= 0:
        beyond, end = f"> {_long(LONG_MAX - by)}", nothing if low else _long(LONG_MAX)
    else:
        beyond, end = f"< {_long(LONG_MIN - by)}", _long(LONG_MIN) if low else nothing
    return f"CASE WHEN {sql} {beyond} THEN {end} ELSE {sql} + {_long(by)} END"


def distance(high: str, low: str, kind: SqlType) -> str:
    """The distance between two comparable values."""
    if kind.is_integer:
        wider = "HUGEINT" if kind == LONG else "BIGINT"
        return f"(CAST({high} AS {wider}) - CAST({low} AS {wider}))"
    if kind.is_numeric or kind == DATE:
        return f"({high} - {low})"
    return f"(CAST(epoch_us({high}) AS HUGEINT) - CAST(epoch_us({low}) AS HUGEINT))"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ranges of values, each at least as wide as the interval between two offsets.

    A value of such an interval is in the bucket of its low end or in the next one.
    """

    kind: SqlType
    between: float

    @classmethod
    def of(cls, lower: Offset, upper: Offset, kind: SqlType) -> Buckets | None:
        """Buckets for an interval; None if it is too wide for them."""
        between = width(lower, upper, kind)
        most = _WIDTH_MAX if isinstance(between, int) else _FLOAT_WIDTH_MAX
        return cls(kind, between) if between <= most else None

    @property
    def copies(self) -> int:
        """The number of buckets for a right row: its own, and the one before it."""
        return 1 if self.between == 0 else 2

    def of_value(self, sql: str) -> str:
        """The bucket of a comparable value."""
        if self.kind.is_numeric and not self.kind.is_integer:
            number = as_type(sql, DOUBLE)
            if self.between == 0:
                return number
            bucket_width = _literal(repr(self.between * _ROUNDING), DOUBLE)
            most = _FLOAT_BUCKETS_MAX
            return f"greatest(least(floor({number} / {bucket_width}), {most}), -{most})"
        if self.kind == DATE:
            sql = f"({sql} - DATE '1970-01-01')"
        elif not self.kind.is_integer:
            sql = f"epoch_us({sql})"
        return f"(({sql}) // {_long(int(self.between) + 1)})"


def result_columns(node: OrderedJoin, left: str, right: str) -> str:
    """The columns of the result, from rows of these two names."""
    return ", ".join(
        f"{left if column.side == 'left' else right}.{quoted(column.source)}"
        f" AS {quoted(column.name)}"
        for column in node.columns
    )


def equal_keys(node: OrderedJoin, left: str, right: str) -> list[str]:
    """The conditions that the keys of both sides are equal."""
    pairs = zip(node.left_keys, node.right_keys, strict=True)
    return [
        f"{left}.{quoted(left_key)} = {right}.{quoted(right_key)}" for left_key, right_key in pairs
    ]


def free_names(node: OrderedJoin, *names: str) -> list[str]:
    """Names that no column of either side has, quoted."""
    used = {name.lower() for child in node.children for name in child.schema.names}
    return [quoted(free_name(f"__{name}", used, "_")) for name in names]


def _long(number: int) -> str:
    return _literal(str(number), LONG)


def _literal(number: str, kind: SqlType) -> str:
    return as_type(f"'{number}'", kind)
