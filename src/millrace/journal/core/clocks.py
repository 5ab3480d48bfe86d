"""Clocks of rows: 60 bits of time and 4 bits of counter. Pure: the time is an argument.

Time counts 100 ns steps since 1970 UTC, so a clock tells when its row was written, and a producer
has 160 million clocks a second to give out. Clock 0 is before every row.

Invariant: `next_clock` returns a clock above its argument, even if the time goes back.
"""

from __future__ import annotations

from typing import Final, NewType

from millrace.errors import UserError
from millrace.journal.core.number_ranges import Unsigned

Clock = NewType("Clock", Unsigned)

BEFORE_ALL: Final = Clock(0)
CLOCK_MAX: Final = Clock(2**64 - 1)
_NS_PER_STEP: Final = 100
_COUNTER_BITS: Final = 4


def clock_at(unix_ns: int) -> Clock:
    """The first clock of a moment."""
    return Clock(max(0, unix_ns) // _NS_PER_STEP << _COUNTER_BITS)


def unix_ns_of(clock: Clock) -> int:
    """When a clock was, in nanoseconds since 1970 UTC."""
    return (clock >> _COUNTER_BITS) * _NS_PER_STEP


def next_clock(last: Clock, now_ns: int) -> Clock:
    """The next clock of a producer: the time's own, or one above the last if time stood still."""
    return Clock(max(clock_at(now_ns), last + 1))


def check_clock(clock: int) -> Clock:
    """Refuse what does not fit 64 bits."""
    if not BEFORE_ALL <= clock <= CLOCK_MAX:
        raise UserError(f"clock {clock} does not fit 64 bits\n  to fix: give 0 to {CLOCK_MAX}")
    return Clock(clock)
