"""Which slice reads a journal. Pure.

The member whose range holds all its rows, if the journal's labels fix the key; else any member,
chosen by consistent hashing, so that most journals stay where they are when members change. A
journal of several bindings has one reader, so that it is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.journal.core.values import JournalInfo
from millrace.keys.consistent_hash import choose
from millrace.keys.key_ranges import KeyRange
from millrace.reads.model.coordinated_read import Binding
from millrace.reads.model.labels import fixed_place


def assign(journal: JournalInfo, bindings: Sequence[Binding], ranges: Sequence[KeyRange]) -> int:
    """The member that reads a journal for its bindings."""
    for binding in bindings:
        fixed = fixed_place(journal, binding.key)
        if fixed is not None:
            return next(n for n, key_range in enumerate(ranges) if key_range.contains(fixed))
    return choose(f"{bindings[0].name}/{journal.name}", len(ranges))
