"""Chooses one of several numbered members for a name, by jump consistent hashing.

The cost of a choice grows with the logarithm of the number of members: a session chooses for each
of very many journals.

Invariant: every process makes the same choice. With one member more, names move to it alone.
"""

from __future__ import annotations

from typing import Final

import xxhash

from millrace.errors import UserError

_FACTOR: Final = 2862933555777941757
_BITS: Final = 2**64 - 1


def choose(name: str, members: int) -> int:
    """The number of the member that gets `name`, of members from 0 on."""
    if members < 1:
        raise UserError(f"nobody to choose for {name!r}\n  to fix: give at least one member")
    state = xxhash.xxh3_64_intdigest(name.encode())
    chosen, jump = 0, 0
    while jump < members:
        chosen = jump
        state = (state * _FACTOR + 1) & _BITS
        jump = int((chosen + 1) * (2**31 / ((state >> 33) + 1)))
    return chosen
