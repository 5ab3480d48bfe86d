"""Which slice reads a journal. Pure.

The member whose range holds all its rows, if the journal's labels fix the key; else any member,
chosen by consistent hashing, so that most journals stay where they are when members change. A
journal of several bindings has one reader, so that it is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.journal.core.values import JournalInfo
from millrace.keys.consistent_hash import choose_all
from millrace.keys.key_ranges import KeyRange
from millrace.reads.model.coordinated_read import Binding
from millrace.reads.model.labels import fixed_place


def assign(
    journals: Sequence[tuple[JournalInfo, Sequence[Binding]]], ranges: Sequence[KeyRange]
) -> list[int]:
    """The members that read journals, each for its bindings."""
    names = [f"{bindings[0].name}/{journal.name}" for journal, bindings in journals]
    readers: list[int] = choose_all(names, len(ranges)).tolist()
    for number, (journal, bindings) in enumerate(journals):
        fixed = _fixed(journal, bindings) if journal.labels else None
        if fixed is not None:
            is_its = (key_range.contains(fixed) for key_range in ranges)
            readers[number] = next(member for member, its in enumerate(is_its) if its)
    return readers


def _fixed(journal: JournalInfo, bindings: Sequence[Binding]) -> int | None:
    """The place of the key of all rows of a journal, if its labels say it."""
    places = (fixed_place(journal, binding.key) for binding in bindings)
    return next((place for place in places if place is not None), None)
