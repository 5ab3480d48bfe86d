"""Which rows become visible from one checkpoint to another."""

from __future__ import annotations

from tests.unit.reads.model.test_checkpoint import A, B, P, Q, checkpoint

from millrace.reads.model.checkpoint import merge
from millrace.reads.model.clock_windows import Visible, between
from millrace.reads.model.number_tables import NONE


def test_a_window_lies_above_what_was_shown_and_up_to_what_is_shown_now() -> None:
    before = checkpoint(1, shown={(A, P): (10, NONE), (A, Q): (10, NONE)})
    now = merge(before, checkpoint(2, shown={(A, P): (30, NONE), (B, P): (5, NONE)}))

    assert between(before, now).windows.rows() == [(A, P, 10, 30), (B, P, 0, 5)]


def test_a_begin_that_moved_shows_nothing() -> None:
    before = checkpoint(1, shown={(A, P): (10, 7)})
    now = merge(before, checkpoint(2, shown={(A, P): (10, NONE)}))

    assert between(before, now).windows.rows() == []


def test_ranges_of_what_shows_something_come_along_whenever_they_were_found() -> None:
    before = checkpoint(1, shown={(A, P): (10, NONE)}, gone=[(A, P, 3, 5, 18), (B, P, 3, 5, 18)])
    now = merge(before, checkpoint(2, shown={(A, P): (30, NONE)}))

    assert between(before, now).rolled_back.rows() == [(A, P, 3, 5, 18)]


def test_what_is_visible_travels_as_bytes() -> None:
    now = checkpoint(1, shown={(A, P): (30, NONE)}, gone=[(A, P, 3, 5, 18)])
    given = between(merge(), now)

    found = Visible.from_bytes(given.to_bytes())

    assert found.windows.rows() == given.windows.rows() == [(A, P, 0, 30)]
    assert found.rolled_back.rows() == given.rolled_back.rows()
