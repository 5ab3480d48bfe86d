"""Which journals a coordinated read reads, for which bindings. Pure.

Invariant: journals are numbered in the order in which they are made, so a catalog that holds
everything up to some number knows of each journal up to there whether it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.journal.core.journal_names import JournalId, names_under, under
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.coordinated_read import Binding, CohortNumber, CoordinatedRead
from millrace.reads.model.slice_progress import Hints
from millrace.reads.model.tags import Ints, bindings_of, journals_of, tags_of

_OWN: Final = "millrace"


@dataclass(frozen=True)  # Without slots, for what is computed once.
class JournalCatalog:
    """The journals of each binding, in order, as of a moment."""

    cohorts: tuple[CohortNumber, ...]
    """The cohort of each binding."""
    journals: tuple[Ints, ...]
    """For each binding the ids of its journals, in order."""
    highest: JournalId
    """Journals above it may exist and are not known here."""

    @cached_property
    def runs(self) -> tuple[Ints, ...]:
        """The journals as runs, for messages: every slice gets the same."""
        return tuple(runs_of(ids) for ids in self.journals)

    def tags(self) -> Ints:
        """The tags of all journals that are read."""
        return np.concatenate([tags_of(number, ids) for number, ids in enumerate(self.journals)])

    def without(self, other: JournalCatalog) -> JournalCatalog:
        """The journals that are not in another catalog of the same read, which may be large."""
        pairs = zip(self.journals, other.journals, strict=True)
        return replace(self, journals=tuple(ids[~_among(ids, others)] for ids, others in pairs))

    def among(self, journals: Ints) -> JournalCatalog:
        """Only these journals, sorted: a few of very many."""
        return replace(
            self, journals=tuple(journals[_among(journals, ids)] for ids in self.journals)
        )

    def changed(self, more: JournalCatalog, gone: JournalCatalog) -> JournalCatalog:
        """Without some of its journals, and with those of a later catalog that are not here."""
        parts = zip(self.journals, more.journals, gone.journals, strict=True)
        return replace(more, journals=tuple(_changed(*part) for part in parts))

    def read_in_cohort(self, bindings: Ints, journals: Ints) -> npt.NDArray[np.bool_]:
        """Whether each journal is read in the cohort of the binding beside it."""
        is_read_there = np.zeros(len(journals), np.bool_)
        cohorts = np.array(self.cohorts, np.int64)
        cohort_of_row = cohorts[bindings]
        for number, ids in enumerate(self.journals):
            is_read_there |= (cohort_of_row == cohorts[number]) & _among(journals, ids)
        return is_read_there

    def read_twice(self, tags: Ints) -> npt.NDArray[np.bool_]:
        """Whether the journal of each tag is read under another tag of its cohort, too."""
        bindings, journals = bindings_of(tags), journals_of(tags)
        is_read_twice = np.zeros(len(tags), np.bool_)
        cohorts = np.array(self.cohorts, np.int64)
        for number, ids in enumerate(self.journals):
            others = (cohorts[bindings] == cohorts[number]) & (bindings != number)
            if others.any():
                is_read_twice |= others & _among(journals, ids)
        return is_read_twice

    def targets(self, hints: Hints) -> tuple[Ints, Ints]:
        """The tags that hints wait for: indexes of hints, and a tag for each."""
        cohorts = np.array(self.cohorts, np.int64)
        of_row = cohorts[bindings_of(hints.tag)]
        places, tags = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, ids in enumerate(self.journals):
            target = tags_of(number, hints.journal)
            is_other_tag = (of_row == cohorts[number]) & (target != hints.tag)
            hint_places = np.flatnonzero(is_other_tag & _among(hints.journal, ids))
            places.append(hint_places)
            tags.append(target[hint_places])
        return np.concatenate(places), np.concatenate(tags)


def catalog_of(
    read: CoordinatedRead, journals: Sequence[JournalInfo], highest: int
) -> JournalCatalog:
    """The catalog of these journals; `highest` is the id of the newest one."""
    ids = [
        np.sort(np.array([journal.id for journal in read_under(binding, journals)], np.int64))
        for binding in read.bindings
    ]
    return JournalCatalog(read.cohorts(), tuple(ids), JournalId(highest))


def runs_of(ids: Ints) -> Ints:
    """Ids in order as runs: the first of each and the one behind its last, in turn.

    Most journals of a binding were made one after the other, so there are few.
    """
    if not len(ids):
        return ids
    edges = np.flatnonzero(np.diff(ids) != 1)
    firsts, lasts = np.append(0, edges + 1), np.append(edges, len(ids) - 1)
    return np.column_stack([ids[firsts], ids[lasts] + 1]).ravel()


def ids_of(runs: Ints) -> Ints:
    """The ids of runs."""
    firsts, lengths = runs[::2], runs[1::2] - runs[::2]
    before = np.cumsum(lengths) - lengths
    return np.repeat(firsts - before, lengths) + np.arange(lengths.sum())


def read_under(binding: Binding, journals: Sequence[JournalInfo]) -> list[JournalInfo]:
    """The journals that a binding reads. Millrace's own journals must be named."""
    chosen = _below(binding.prefix, journals)
    if not under(_OWN, binding.prefix):
        is_own = names_under(_OWN, (journal.name for journal in chosen))
        chosen = [journal for journal, own in zip(chosen, is_own, strict=True) if not own]
    selector = binding.selector
    if selector.is_prefix:
        return chosen
    return [journal for journal in chosen if selector.takes(journal.name, journal.labels)]


def _below(prefix: str, journals: Sequence[JournalInfo]) -> list[JournalInfo]:
    is_below = names_under(prefix, (journal.name for journal in journals))
    return [journal for journal, taken in zip(journals, is_below, strict=True) if taken]


def _changed(ids: Ints, more: Ints, gone: Ints) -> Ints:
    if len(gone):
        ids = np.delete(ids, np.searchsorted(ids, gone))
    if len(more) and len(ids) and more[0] < ids[-1]:
        return np.sort(np.append(ids, more))
    return np.append(ids, more) if len(more) else ids


def _among(values: Ints, sorted_ids: Ints) -> npt.NDArray[np.bool_]:
    if not len(sorted_ids):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
    is_among: npt.NDArray[np.bool_] = sorted_ids[places] == values
    return is_among
