"""Chooses one of several numbered members for a name, by jump consistent hashing.

The cost of a choice grows with the logarithm of the number of members: a session chooses for each
of very many journals.

Invariant: every process makes the same choice. With one member more, names move to it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from millrace.errors import UserError

_FACTOR: Final = np.uint64(2862933555777941757)
_ONE: Final = np.uint64(1)
_HALF: Final = np.uint64(33)


def choose(name: str, members: int) -> int:
    """The number of the member that gets `name`, of members from 0 on."""
    return int(choose_all([name], members)[0])


def choose_all(names: Sequence[str], members: int) -> npt.NDArray[np.int64]:
    """The numbers of the members that get names, of members from 0 on."""
    if members < 1:
        name = names[0] if names else ""
        raise UserError(f"nobody to choose for {name!r}\n  to fix: give at least one member")
    state = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
    chosen, jump = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    left = np.arange(len(names))
    while len(left):
        chosen[left] = jump
        state = state * _FACTOR + _ONE
        jump = ((jump + 1) * (2.0**31 / ((state >> _HALF) + _ONE))).astype(np.int64)
        is_left = jump < members
        left, state, jump = left[is_left], state[is_left], jump[is_left]
    return chosen
