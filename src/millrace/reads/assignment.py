"""Which slice reads a journal. Pure.

The member whose range holds all its rows, if the journal's labels fix the key; else any member,
chosen by highest random weight, so that most journals stay where they are when members change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.errors import UnsupportedType
from millrace.journal.values import JournalInfo
from millrace.keys.hash import hash_rows
from millrace.keys.ranges import KeyRange
from millrace.keys.weight import choose
from millrace.reads.task import Binding


def assign(journal: JournalInfo, binding: Binding, ranges: Sequence[KeyRange]) -> int:
    """The member that reads a journal for a binding."""
    fixed = fixed_key(journal, binding.key)
    if fixed is not None:
        return next(n for n, each in enumerate(ranges) if each.contains(fixed))
    return choose(f"{binding.name}/{journal.name}", range(len(ranges)))


def fixed_key(journal: JournalInfo, key: Sequence[str]) -> int | None:
    """The one place in the key space that all rows of a journal have; None if not fixed.

    A label of the name of each key column fixes it: its text is the value, in the column's type.
    """
    if not key or not all(name in journal.labels for name in key):
        return None
    columns = {}
    for name in key:
        place = journal.schema.get_field_index(name)
        if place < 0:
            return None
        try:
            text = pa.array([journal.labels[name]], pa.string())
            columns[name] = text.cast(journal.schema.field(place).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
    try:
        return int(hash_rows(pa.table(columns), tuple(key)).view(np.uint32)[0])
    except UnsupportedType:
        return None
