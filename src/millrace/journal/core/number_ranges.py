"""Ranges of the numbers that travel between a client and the owner of journals. Pure.

The type checker sees plain numbers. A codec that reads a value from the network refuses a number
outside its range.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

_SPAN_MAX: Final = 2**40

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that fits 64 bits with a sign."""
Unsigned = Annotated[int, Meta(ge=0)]
"""A whole number that fits 64 bits without a sign; no codec carries a larger one."""
Span = Annotated[int, Meta(ge=0, le=_SPAN_MAX)]
"""A limit or a time in milliseconds."""
Seconds = Annotated[float, Meta(ge=0)]
"""How long to wait."""
