"""Builds frames from text: `ROWS BETWEEN 2 PRECEDING AND CURRENT ROW`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.plan.nodes.sort import SortKey
from millrace.plan.nodes.window import CURRENT_ROW, FIRST, LAST, Bound, Frame
from millrace.sql.expressions import as_user_error
from millrace.sql.functions.dates import Span, span
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import NotNative, as_type
from millrace.sql.types import DATE, TIMESTAMP, TIMESTAMP_NTZ, SqlType, from_arrow

_FRAME: Final = re.compile(
    r"\s*(?P<unit>ROWS|RANGE)\s+"
    r"(?:BETWEEN\s+(?P<start>.+?)\s+AND\s+(?P<end>.+?)|(?!BETWEEN)(?P<only>.+?))\s*",
    re.IGNORECASE | re.DOTALL,
)
_BOUND: Final = re.compile(
    r"CURRENT\s+ROW|(?P<by>.+?)\s+(?P<way>PRECEDING|FOLLOWING)", re.IGNORECASE | re.DOTALL
)
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_CURRENT: Final = "CURRENT ROW"
_ROWS_MAX: Final = (1 << 31) - 1
_DAY_MICROS: Final = 86_400_000_000
_SHAPE: Final = (
    "write, for example, ROWS BETWEEN 2 PRECEDING AND CURRENT ROW, with UNBOUNDED PRECEDING, "
    "n PRECEDING, CURRENT ROW, n FOLLOWING or UNBOUNDED FOLLOWING"
)


def read_frame(text: str, schema: pa.Schema, order: tuple[SortKey, ...]) -> Frame:
    """A frame over rows in an order."""
    with as_user_error(f"window(frame={text!r})"):
        match = _FRAME.fullmatch(str(text))
        if match is None:
            raise NotNative("the frame cannot be read", found=str(text), fix=_SHAPE)
        unit = "ROWS" if match["unit"].upper() == "ROWS" else "RANGE"
        if unit == "RANGE" and not order:
            raise NotNative("a RANGE needs an order", fix="give order_by=, or use ROWS")
        kinds = [from_arrow(schema.field(key.column).type) for key in order]
        start, end = match["only"] or match["start"], match["end"] or _CURRENT
        return _frame(unit, start, end, kinds)


def frame_of(tree: exp.WindowSpec, order: Sequence[SqlType]) -> Frame:
    """The frame of a tree, over an order by values of these types."""
    unit = str(tree.args.get("kind") or "").upper()
    if unit not in ("ROWS", "RANGE") or tree.args.get("exclude"):
        raise NotNative("a frame of this kind", found=canonical(tree), fix=_SHAPE)
    if unit == "RANGE" and not order:
        raise NotNative("a RANGE needs an order", found=canonical(tree), fix="use ROWS")
    start = _bound_text(tree.args["start"], tree.args.get("start_side"))
    end = tree.args.get("end")
    last = _CURRENT if end is None else _bound_text(end, tree.args.get("end_side"))
    return _frame(unit, start, last, order)


def _bound_text(bound: str | exp.Expression, side: str | None) -> str:
    text = bound if isinstance(bound, str) else canonical(bound)
    return f"{text} {side}" if side else text


def _frame(unit: str, start_text: str, end_text: str, order: Sequence[SqlType]) -> Frame:
    by = order if unit == "RANGE" else None
    start, end = _bound(start_text, by), _bound(end_text, by)
    if start.offset > end.offset or start == LAST or end == FIRST:
        shown = f"{unit} BETWEEN {start_text} AND {end_text}"
        raise NotNative("the frame ends before it begins", found=shown, fix="swap its bounds")
    return Frame("ROWS" if unit == "ROWS" else "RANGE", start, end)


def _way(sign: int) -> str:
    return "PRECEDING" if sign < 0 else "FOLLOWING"


def _bound(text: str, order: Sequence[SqlType] | None) -> Bound:
    """One end of a frame; `order` has the types that a RANGE is counted in."""
    match = _BOUND.fullmatch(text)
    if match is None:
        raise NotNative("the bound of a frame cannot be read", found=text, fix=_SHAPE)
    if match["by"] is None:
        return CURRENT_ROW
    sign = -1 if match["way"].upper() == "PRECEDING" else 1
    if match["by"].upper() == "UNBOUNDED":
        return FIRST if sign < 0 else LAST
    if order is None:
        return _rows(match["by"], sign, text)
    if len(order) != 1:
        raise NotNative(
            "a RANGE by value needs one column to order by",
            found=text,
            fix="order by one column, or use ROWS",
        )
    return _range(match["by"], sign, order[0], text)


def _rows(by: str, sign: int, text: str) -> Bound:
    if not by.isdecimal() or int(by) > _ROWS_MAX:
        raise NotNative("ROWS are counted in whole numbers", found=text, fix=_SHAPE)
    return Bound(f"{int(by)} {_way(sign)}", sign * int(by))


def _range(by: str, sign: int, kind: SqlType, text: str) -> Bound:
    if kind.is_numeric or (kind == DATE and _NUMBER.fullmatch(by)):
        value = _amount(by, kind, text)
        sql = f"to_days(CAST({value} AS INTEGER))" if kind == DATE else as_type(f"'{value}'", kind)
        scale = _DAY_MICROS if kind == DATE else 1
        return Bound(f"{sql} {_way(sign)}", sign * float(value) * scale)
    if kind not in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        raise NotNative(
            f"a RANGE by value cannot be counted in {kind}",
            found=text,
            fix="order by a number, a date or a time, or use ROWS",
        )
    return _interval(by, sign, kind, text)


def _amount(by: str, kind: SqlType, text: str) -> Decimal:
    value = Decimal(by) if _NUMBER.fullmatch(by) else None
    if value is None or (value % 1 and not (kind.is_floating or kind.is_decimal)):
        whole = "" if kind.is_floating or kind.is_decimal else "whole "
        raise NotNative(f"a RANGE over {kind} is counted in {whole}numbers", found=text, fix=_SHAPE)
    digits = -int(value.as_tuple().exponent)
    if kind.is_decimal and digits > kind.scale:
        raise NotNative(f"{by} has more digits than {kind}", found=text, fix="round it")
    return value


def _interval(by: str, sign: int, kind: SqlType, text: str) -> Bound:
    tree = read(by)
    unit = tree.args.get("unit") if isinstance(tree, exp.Interval) else None
    if not isinstance(unit, exp.Var) or not isinstance(tree.this, exp.Literal):
        raise NotNative(
            f"a RANGE over {kind} is counted in intervals of one unit",
            found=text,
            fix="write, for example, RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW",
        )
    length = span(tree.this.name, unit.name)
    if min(length.months, length.days, length.micros) < 0:
        raise NotNative("a frame is counted in positive numbers", found=text, fix=_SHAPE)
    if kind == DATE and length.micros:
        raise NotNative("a RANGE over dates is counted in days or months", found=text, fix=_SHAPE)
    if kind == TIMESTAMP and length.micros > _DAY_MICROS and length.micros % _DAY_MICROS:
        # 24 hours are a day of the calendar, and Spark adds it before the rest, DuckDB after it.
        raise NotNative(
            "an interval of more than a day is a whole number of days here",
            found=text,
            fix="count in days, in at most 24 hours, or over a timestamp_ntz",
        )
    micros = (length.months * 30 + length.days) * _DAY_MICROS + length.micros
    return Bound(f"{_interval_sql(length)} {_way(sign)}", sign * float(micros))


def _interval_sql(length: Span) -> str:
    if length.months:
        return f"to_months(CAST({length.months} AS INTEGER))"
    # As Spark does it: 24 hours are a day of the calendar, which may have 23 or 25.
    days, rest = divmod(length.micros, _DAY_MICROS)
    whole = f"to_days(CAST({length.days + days} AS INTEGER))"
    return f"({whole} + to_microseconds(CAST({rest} AS BIGINT)))" if rest else whole
