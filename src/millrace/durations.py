"""How users say a length of time: a `timedelta`, a number of seconds, or text such as "10s". Pure.

Every argument, setting and option that is a time takes all three, and is named without a unit.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from millrace.errors import UserError

Duration = timedelta | float | str
"""A length of time as a user gives it. Numbers are seconds."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS: Final = {"second": "s", "minute": "m", "hour": "h", "day": "d"}
_TEXT: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*(?:(ms|s|m|h|d)|({'|'.join(_WORDS)})s?)")
_SECONDS_MAX: Final = 100 * 366 * 86400
_EXAMPLES: Final = 'give seconds, a timedelta, or text such as "500ms", "10s", "15m", "2h" or "7d"'


def seconds(value: Duration, what: str) -> float:
    """The seconds of a length of time; `what` names the argument in errors."""
    found = _seconds(value)
    if found is None:
        raise UserError(f"{what} is not a time\n  found: {value!r}\n  to fix: {_EXAMPLES}")
    if not 0 <= found <= _SECONDS_MAX:
        raise UserError(
            f"{what} is out of range\n  found: {value!r}\n  to fix: give 0 or more, up to 100 years"
        )
    return found


def milliseconds(value: Duration, what: str) -> int:
    """The whole milliseconds of a length of time, rounded up; `what` names it in errors."""
    return math.ceil(round(seconds(value, what) * 1000, 6))


def ms(value: Duration) -> int:
    """The whole milliseconds of a setting of `Config`, which was checked when it was given."""
    return milliseconds(value, "time")


def shown(value: float) -> str:
    """Seconds as a user would write them.

    Example:
        >>> shown(90), shown(0.25), shown(7200), shown(12.5)
        ('90s', '250ms', '2h', '12.5s')
    """
    for unit in ("d", "h", "m"):
        size = _UNITS[unit]
        if value >= 2 * size and value % size == 0:
            return f"{value / size:.0f}{unit}"
    text, unit = (value * 1000, "ms") if 0 < value < 1 else (value, "s")
    return f"{text:.6f}".rstrip("0").rstrip(".") + unit


def _seconds(value: object) -> float | None:
    match value:
        case bool():
            return None
        case timedelta():
            return value.total_seconds()
        case int() | float():
            return None if math.isnan(value) else float(value)
        case str():
            match = _TEXT.fullmatch(value.strip())
            return float(match[1]) * _UNITS[match[2] or _WORDS[match[3]]] if match else None
        case _:
            return None
