"""Tags: which journal is read for which binding, as one integer. Pure.

A tag stays the same for good: journals are numbered by the ledger, bindings in the order of the
read, so tags of one checkpoint mean the same in the next session. Everything here takes single
integers and numpy arrays alike.
"""

from __future__ import annotations

from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from millrace.journal.core.journal_names import JournalId

TAG: Final = "_mr_tag"
"""The column of a staged row that says of which tag it is."""
Tag = NewType("Tag", int)
BindingNumber = NewType("BindingNumber", int)
Ints = npt.NDArray[np.int64]
Clocks = npt.NDArray[np.uint64]

JOURNAL_BITS: Final = 40
BINDINGS_MAX: Final = 2**20
JOURNAL_MAX: Final = 2**JOURNAL_BITS - 1


def tag_of(binding: int, journal: int) -> Tag:
    """The tag of a journal that is read for a binding."""
    assert 0 <= binding < BINDINGS_MAX, binding
    assert 0 <= journal <= JOURNAL_MAX, journal
    return Tag(binding << JOURNAL_BITS | journal)


def tags_of(binding: int, journals: Ints) -> Ints:
    """The tags of journals that are read for a binding."""
    return journals | np.int64(binding << JOURNAL_BITS)


def journal_of(tag: int) -> JournalId:
    """The journal of a tag."""
    return JournalId(tag & JOURNAL_MAX)


def journals_of(tags: Ints) -> Ints:
    """The journals of tags."""
    return tags & np.int64(JOURNAL_MAX)


def binding_of(tag: int) -> BindingNumber:
    """The binding of a tag."""
    return BindingNumber(tag >> JOURNAL_BITS)


def bindings_of(tags: Ints) -> Ints:
    """The bindings of tags."""
    return tags >> np.int64(JOURNAL_BITS)
