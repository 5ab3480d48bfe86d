"""A tag is a binding and a journal in one integer."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.reads.model.tags import (
    BINDINGS_MAX,
    JOURNAL_MAX,
    binding_of,
    bindings_of,
    journal_of,
    journals_of,
    tag_of,
    tags_of,
)

EDGES = [(0, 0), (0, JOURNAL_MAX), (7, 12), (BINDINGS_MAX - 1, 0), (BINDINGS_MAX - 1, JOURNAL_MAX)]


@pytest.mark.parametrize(("binding", "journal"), EDGES)
def test_a_tag_gives_back_its_parts_and_fits_64_bits(binding: int, journal: int) -> None:
    tag = tag_of(binding, journal)

    assert (binding_of(tag), journal_of(tag)) == (binding, journal)
    assert 0 <= tag < 2**63


def test_arrays_give_what_single_tags_give() -> None:
    tags = np.array([tag_of(*edge) for edge in EDGES], np.int64)

    assert bindings_of(tags).tolist() == [binding for binding, _ in EDGES]
    assert journals_of(tags).tolist() == [journal for _, journal in EDGES]
    assert tags_of(7, np.array([12, 13])).tolist() == [tag_of(7, 12), tag_of(7, 13)]


@pytest.mark.parametrize("edge", [(-1, 0), (BINDINGS_MAX, 0), (0, -1), (0, JOURNAL_MAX + 1)])
def test_parts_that_do_not_fit_are_no_tag(edge: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        tag_of(*edge)
