"""Which member to name when members lost each other. Pure.

A member that reports a lost stream has noticed it; the fault may lie at either end. A member whose
host or network failed is in the reports of all others, and they are in none but those with it.
"""

from __future__ import annotations

from collections import defaultdict


class LostLinks:
    """The streams between members that were reported as lost."""

    def __init__(self) -> None:
        self._lost: defaultdict[int, set[int]] = defaultdict(set)
        """Of each member, the members at the other end of its lost streams."""

    def add(self, noticed_by: int, lost: int) -> None:
        """A member has lost the stream to or from another one."""
        self._lost[noticed_by].add(lost)
        self._lost[lost].add(noticed_by)

    def suspects(self) -> tuple[int, ...]:
        """The members with the most lost streams: one is to blame, several share a link."""
        most = max((len(others) for others in self._lost.values()), default=0)
        return tuple(sorted(who for who, others in self._lost.items() if len(others) == most))
