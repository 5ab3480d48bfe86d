"""What a catalog tells is what loops over bindings and journals tell."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.reads.model.test_catalog import catalog

from millrace.reads.model.journal_catalog import ids_of, runs_of
from millrace.reads.model.slice_progress import Hints
from millrace.reads.model.tags import tag_of

JOURNAL = st.integers(1, 6)
BINDINGS = st.lists(
    st.tuples(st.integers(0, 2), st.sets(JOURNAL).map(sorted)), min_size=1, max_size=5
)
Bindings = list[tuple[int, list[int]]]


@settings(max_examples=examples(150), deadline=None)
@given(BINDINGS, st.data())
def test_a_catalog_answers_as_loops_do(bindings: Bindings, data: st.DataObject) -> None:
    found = catalog(*bindings)
    number = st.integers(0, len(bindings) - 1)
    asked = data.draw(st.lists(st.tuples(number, JOURNAL, JOURNAL), max_size=12))

    def readers(binding: int, journal: int) -> list[int]:
        """The bindings of the same cohort that read a journal."""
        cohort = bindings[binding][0]
        return [n for n, (c, ids) in enumerate(bindings) if c == cohort and journal in ids]

    numbers = np.array([n for n, _, _ in asked], np.int64)
    journals = np.array([j for _, j, _ in asked], np.int64)
    tags = np.array([tag_of(n, j) for n, j, _ in asked], np.int64)
    assert found.read_in_cohort(numbers, journals).tolist() == [
        bool(readers(n, j)) for n, j, _ in asked
    ]
    assert found.read_twice(tags).tolist() == [
        any(other != n for other in readers(n, j)) for n, j, _ in asked
    ]
    places, targets = found.targets(Hints.of([(tag_of(n, j), 1, 1, hint) for n, j, hint in asked]))
    assert sorted(zip(places.tolist(), targets.tolist(), strict=True)) == sorted(
        (place, tag_of(other, hint))
        for place, (n, j, hint) in enumerate(asked)
        for other in readers(n, hint)
        if tag_of(other, hint) != tag_of(n, j)
    )


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(st.integers(0, 30)))
def test_runs_of_journals_stand_for_the_journals(journals: set[int]) -> None:
    ids = np.array(sorted(journals), np.int64)
    runs = runs_of(ids)
    assert ids_of(runs).tolist() == ids.tolist()
    assert len(runs) == 2 * sum(journal - 1 not in journals for journal in journals)
