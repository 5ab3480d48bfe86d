"""How values are written on a page: numbers, sizes, times. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from millrace.text import human_bytes, human_seconds

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_CELL_MAX: Final = 400
_CENT: Final = 0.01
_TONES: Final = {
    "finished": "ok",
    "ok": "ok",
    "open": "run",
    "running": "run",
    "failed": "bad",
    "died": "bad",
    "killed": "bad",
    "lost": "bad",
    "damaged": "bad",
    "missing": "bad",
    "held": "warn",
    "spent": "warn",
    "interrupted": "warn",
    "note": "warn",
}


def number(value: float | None) -> str:
    """A whole number with its thousands apart; nothing for None."""
    return "" if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in a unit that people read."""
    return "" if value is None else human_bytes(int(value))


def seconds(value: float | None) -> str:
    """A length of time in its largest two units."""
    return "" if value is None else human_seconds(value)


def rate(value: float | None) -> str:
    """Something per second."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"  # noqa: PLR2004 - two digits


def times(value: float | None) -> str:
    """How many times something."""
    return "" if value is None else f"{value:.1f}\u00d7"


def percent(value: float | None) -> str:
    """A share."""
    return "" if value is None else f"{value:.1%}"


def dollars(value: float | None) -> str:
    """An amount of money."""
    if value is None:
        return ""
    if value >= 1 or value == 0:
        return f"${value:,.2f}"
    return f"${value:.4f}" if value >= _CENT else f"${Decimal(f'{value:.2g}'):f}"


def moment(value: datetime | int | None) -> str:
    """A time in full; a number is microseconds since 1970."""
    at = _time(value)
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(now: datetime, value: datetime | int | None) -> str:
    """How long ago a time was."""
    at = _time(value)
    if at is None:
        return ""
    passed = (now - at).total_seconds()
    if passed < 1:
        return "now"
    return f"{_rough(passed)} ago" if passed < 7 * _DAY else at.strftime("%Y-%m-%d")


def _rough(passed: float) -> str:
    for unit, text in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if passed >= unit:
            return f"{passed // unit:.0f} {text}"
    return f"{passed:.0f} s"


def _time(value: datetime | int | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromtimestamp(value / 1_000_000, tz=UTC)


def cell(value: object) -> str:
    """Any value of a row, cut if it is long."""
    if value is None:
        return ""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CELL_MAX else f"{text[:_CELL_MAX]}…"


def tone(state: str) -> str:
    """The colour of a state."""
    return _TONES.get(state, "rest")


def chart(names: list[str], columns: list[list[Any]], *, is_time: bool) -> str:
    """The data of a chart, for the script of the page."""
    given: Mapping[str, Any] = {"names": names, "data": columns, "time": is_time}
    return json.dumps(given)
