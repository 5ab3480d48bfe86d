"""The rotated clock, by which members share rows that have no key.

A clock is 60 bits of time and 4 bits of counter. Reversing the bits puts those that change fastest
first, so that rows written one after the other spread over the whole 32-bit space.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt


@overload
def rotated_clock(clock: int) -> int: ...
@overload
def rotated_clock(clock: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]: ...
def rotated_clock(clock: Any) -> Any:
    """`reverse_bits32((clock >> 4) ^ (clock & 15))` of one clock or of an array of them."""
    if isinstance(clock, int):
        return int(rotated_clock(np.array([clock], np.uint64))[0])
    folded = (clock >> np.uint64(4)) ^ (clock & np.uint64(15))
    bits = folded.astype(np.uint32)  # keeps the low 32 bits
    for shift, low in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        here, mask = np.uint32(shift), np.uint32(low)
        bits = ((bits >> here) & mask) | ((bits & mask) << here)
    return bits.byteswap()
