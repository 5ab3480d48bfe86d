"""Which journals a coordinated read reads, for which bindings. Pure.

Invariant: journals are numbered in the order in which they are made, so a catalog that holds
everything up to some number knows of each journal up to there whether it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.journal.core.journal_names import JournalId, under
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.coordinated_read import Binding, CohortNumber, CoordinatedRead
from millrace.reads.model.slice_progress import Hints
from millrace.reads.model.tags import Ints, bindings_of, journals_of, tags_of

_OWN: Final = "millrace"


@dataclass(frozen=True, slots=True)
class JournalCatalog:
    """The journals of each binding, in order, as of a moment."""

    cohorts: tuple[CohortNumber, ...]
    """Of each binding."""
    journals: tuple[Ints, ...]
    """Of each binding, the ids of what it reads, in order."""
    highest: JournalId
    """Journals above it may exist and are not known here."""

    def tags(self) -> Ints:
        """Everything that is read."""
        return np.concatenate([tags_of(number, ids) for number, ids in enumerate(self.journals)])

    def read_in_cohort(self, bindings: Ints, journals: Ints) -> npt.NDArray[np.bool_]:
        """Whether each journal is read in the cohort of the binding beside it."""
        found = np.zeros(len(journals), np.bool_)
        cohorts = np.array(self.cohorts, np.int64)
        cohort_of_row = cohorts[bindings]
        for number, ids in enumerate(self.journals):
            found |= (cohort_of_row == cohorts[number]) & _among(journals, ids)
        return found

    def read_twice(self, tags: Ints) -> npt.NDArray[np.bool_]:
        """Whether the journal of each tag is read under another tag of its cohort, too."""
        bindings, journals = bindings_of(tags), journals_of(tags)
        found = np.zeros(len(tags), np.bool_)
        cohorts = np.array(self.cohorts, np.int64)
        for number, ids in enumerate(self.journals):
            others = (cohorts[bindings] == cohorts[number]) & (bindings != number)
            if others.any():
                found |= others & _among(journals, ids)
        return found

    def targets(self, hints: Hints) -> tuple[Ints, Ints]:
        """The tags that hints wait for: places of hints, and a tag for each place."""
        cohorts = np.array(self.cohorts, np.int64)
        of_row = cohorts[bindings_of(hints.tag)]
        places, tags = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, ids in enumerate(self.journals):
            target = tags_of(number, hints.journal)
            wanted = (of_row == cohorts[number]) & (target != hints.tag)
            found = np.flatnonzero(wanted & _among(hints.journal, ids))
            places.append(found)
            tags.append(target[found])
        return np.concatenate(places), np.concatenate(tags)


def catalog_of(
    read: CoordinatedRead, journals: Sequence[JournalInfo], highest: int
) -> JournalCatalog:
    """What is read of all the journals there are; `highest` is the last one that was made."""
    ids = []
    for binding in read.bindings:
        found = sorted(each.id for each in journals if is_read(binding, each))
        ids.append(np.array(found, np.int64))
    return JournalCatalog(read.cohorts(), tuple(ids), JournalId(highest))


def is_read(binding: Binding, journal: JournalInfo) -> bool:
    """Whether a binding reads a journal. Those of Millrace itself have to be asked for by name."""
    if under(_OWN, journal.name) and not under(_OWN, binding.prefix):
        return False
    return binding.selector.takes(journal.name, journal.labels)


def _among(values: Ints, sorted_ids: Ints) -> npt.NDArray[np.bool_]:
    if not len(sorted_ids):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
    found: npt.NDArray[np.bool_] = sorted_ids[places] == values
    return found
