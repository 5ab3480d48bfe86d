"""Which journals a read reads, and whom a hint waits for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.coordinated_read import Binding, CohortNumber, CoordinatedRead
from millrace.reads.model.journal_catalog import JournalCatalog, catalog_of
from millrace.reads.model.slice_progress import Hints
from millrace.reads.model.tags import tag_of

P = 10


def catalog(*bindings: tuple[int, list[int]]) -> JournalCatalog:
    """Of the cohort and the journals of each binding."""
    return JournalCatalog(
        tuple(CohortNumber(cohort) for cohort, _ in bindings),
        tuple(np.array(ids, np.int64) for _, ids in bindings),
        JournalId(9),
    )


def test_a_catalog_holds_what_bindings_select_in_order_of_ids() -> None:
    names = ["b/2", "a/1", "b/1", "c", "a/2"]
    journals = [
        JournalInfo(
            id=JournalId(number),
            name=name,
            schema=pa.schema([("x", pa.int64())]),
            labels={"kind": "odd" if number % 2 else "even"},
            created_at_ms=0,
        )
        for number, name in reversed(list(enumerate(names, 1)))
    ]
    read = CoordinatedRead(
        "t",
        [
            Binding(name="all", prefix=""),
            Binding(name="b", prefix="b", priority=1),
            Binding(name="odd", prefix="", labels={"kind": "odd"}),
        ],
    )

    found = catalog_of(read, journals, highest=7)

    assert [ids.tolist() for ids in found.journals] == [[1, 2, 3, 4, 5], [1, 3], [1, 3, 5]]
    assert (found.cohorts, found.highest) == ((0, 1, 0), 7)
    expected = [(n, j) for n, ids in enumerate(found.journals) for j in ids.tolist()]
    assert found.tags().tolist() == [tag_of(*pair) for pair in expected]


def test_a_binding_that_selects_nothing_reads_nothing() -> None:
    found = catalog((0, []), (0, []))

    assert found.tags().tolist() == []
    assert found.read_in_cohort(np.array([0]), np.array([1])).tolist() == [False]
    assert found.read_twice(np.array([tag_of(0, 1)])).tolist() == [False]


def test_a_hint_waits_for_every_tag_of_its_journal_in_the_cohort_but_its_own() -> None:
    found = catalog((0, [1, 2]), (1, [1, 2]), (0, [1]))
    hints = Hints.of(
        [
            (tag_of(0, 2), P, 20, 1),  # Another journal, read twice in the cohort.
            (tag_of(0, 1), P, 20, 1),  # Its own journal, under its other tag.
            (tag_of(1, 1), P, 20, 2),  # The other cohort.
            (tag_of(0, 2), P, 20, 3),  # Nobody reads it.
        ]
    )

    places, tags = found.targets(hints)

    waits = sorted(zip(places.tolist(), tags.tolist(), strict=True))
    assert waits == [
        (0, tag_of(0, 1)),
        (0, tag_of(2, 1)),
        (1, tag_of(2, 1)),
        (2, tag_of(1, 2)),
    ]
