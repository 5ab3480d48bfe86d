"""Numbers as people write and read them."""

from __future__ import annotations

import re
from typing import Final

from millrace.errors import UserError

_STEP: Final = 1024
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def human_bytes(count: float) -> str:
    """Bytes with a unit: 1536 is '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"


def counted(count: int, what: str) -> str:
    """A number of things: '1 map task', '2,000 map tasks'."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def parse_duration_ms(text: str) -> int:
    """Milliseconds of '90s', '15m', '12h', '30d' or '250ms'."""
    found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text.strip())
    if found is None:
        raise UserError(f"not a time: {text!r}\n  to fix: a number and a unit: 90s, 15m, 12h, 30d")
    return int(found[1]) * _UNITS_MS[found[2]]
