"""Arguments of steps with state: aggregates, lengths of time, the column of event time. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

from millrace.durations import Duration, seconds
from millrace.errors import UserError
from millrace.sql.name_checks import check_columns

_US: Final = 1_000_000
_TWO: Final = 2
WINDOWS_OF_A_ROW_MAX: Final = 1000
"""Sliding windows that a row may lie in."""


def span_us(given: Duration, what: str) -> int:
    """A length of time above nothing, in microseconds."""
    span = round(seconds(given, what) * _US)
    if span <= 0:
        raise UserError(f'{what} is {given!r}\n  to fix: give more than nothing, as "10 minutes"')
    return span


def time_column(call: str, schema: pa.Schema, given: str | None) -> str:
    """The column with the time of a row: as given, or the only one there is."""
    times: list[str] = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    if given is None:
        if len(times) != 1:
            raise UserError(
                f"{call}: which column has the time of a row?\n"
                f"  found: {', '.join(times) or 'no timestamp'}\n  to fix: give time="
            )
        return times[0]
    check_columns(schema, [given], call)
    if given not in times:
        raise UserError(
            f"{call}: time is {given!r}, which is {schema.field(given).type}\n"
            "  to fix: give a column of timestamps"
        )
    return given


def window_spans(
    call: str,
    tumbling: Duration | None,
    sliding: tuple[Duration, Duration] | None,
    session: Duration | None,
) -> tuple[int, int | None]:
    """The length of windows and how far apart they begin, in microseconds; of sessions the gap."""
    if (tumbling, sliding, session).count(None) != _TWO:
        raise UserError(
            f"{call} needs one kind of window\n"
            '  to fix: give tumbling="10 minutes", sliding=("1 hour", "10 minutes") or '
            'session="30 minutes"'
        )
    if session is not None:
        return span_us(session, f"{call}: session"), None
    if tumbling is not None:
        size = span_us(tumbling, f"{call}: tumbling")
        return size, size
    if not isinstance(sliding, tuple | list) or len(sliding) != _TWO:
        raise UserError(
            f'{call}: sliding is {sliding!r}\n  to fix: give two, as ("1 hour", "10 minutes")'
        )
    size, slide = (span_us(span, f"{call}: sliding") for span in sliding)
    if size % slide or size // slide > WINDOWS_OF_A_ROW_MAX:
        raise UserError(
            f"{call}: windows of {sliding[0]!r} that begin each {sliding[1]!r}\n"
            f"  found: {size / slide:g} windows for each row\n"
            f"  to fix: let the length be a multiple of up to {WINDOWS_OF_A_ROW_MAX} times"
        )
    return size, slide


def check_aggregates(call: str, aggregates: Mapping[str, str], taken: Collection[str]) -> None:
    """Refuse aggregates without text, and names that other columns have."""
    if not aggregates:
        raise UserError(f'{call} has no aggregates\n  to fix: write n="count(*)"')
    for column, text in aggregates.items():
        if column in taken:
            raise UserError(
                f"{call}: {column!r} is a column already\n  to fix: choose another name"
            )
        if not isinstance(text, str):
            raise UserError(
                f'{call}: {column} is {text!r}\n  to fix: write Spark SQL, as "sum(amount)"'
            )


def late_and_idle(
    call: str, late: Duration | None, idle: Duration | None
) -> tuple[int | None, int | None]:
    """How late rows may come, and when a journal counts as idle, in microseconds."""
    if idle is not None and late is None:
        raise UserError(f"{call}: idle without late\n  to fix: give both, or none")
    late_us = None if late is None else round(seconds(late, f"{call}: late") * _US)
    return late_us, None if idle is None else span_us(idle, f"{call}: idle")


def pair_times(
    call: str,
    schemas: tuple[pa.Schema, pa.Schema],
    within: Duration | None,
    time: str | tuple[str, str] | None,
    late: Duration | None,
) -> tuple[int | None, tuple[str | None, str | None]]:
    """How far the times of a pair may be apart, and the columns that have them."""
    given = (None, None) if time is None else (time, time) if isinstance(time, str) else time
    if within is None:
        if late is not None or time is not None:
            raise UserError(f"{call}: late and time go with within\n  to fix: give within=")
        return None, (None, None)
    left, right = (time_column(call, *each) for each in zip(schemas, given, strict=True))
    return span_us(within, f"{call}: within"), (left, right)
