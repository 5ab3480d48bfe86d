"""Chooses one of several members for a name, by highest random weight.

Invariant: the choice depends only on the name and the members, not on their order, so every process
makes the same choice. A member that leaves moves only its own names.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from millrace.errors import UserError


def choose(name: str, members: Sequence[str | int]) -> int:
    """The index in `members` of the one that gets `name`."""
    if not members:
        raise UserError(f"nobody to choose for {name!r}\n  to fix: give at least one member")
    seed = xxhash.xxh3_64_intdigest(name.encode())
    tokens = [f"{type(member).__name__}:{member}".encode() for member in members]
    weights = [(xxhash.xxh3_64_intdigest(token, seed=seed), token) for token in tokens]
    return max(range(len(members)), key=weights.__getitem__)
