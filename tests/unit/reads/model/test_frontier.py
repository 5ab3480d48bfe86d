"""What is shown, when: the stories of the scenarios, and one for each rule."""

from __future__ import annotations

import numpy as np
from tests.unit.reads.model.test_checkpoint import checkpoint

from millrace.journal.core.journal_names import JournalId
from millrace.reads.model.checkpoint import (
    Checkpoint,
    CheckpointNumber,
    RolledBack,
    merge,
    resume_offsets,
)
from millrace.reads.model.coordinated_read import CohortNumber
from millrace.reads.model.frontier import Frontier
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.model.tags import tag_of

A, B, C = 1, 2, 3
"""Journals; as tags, those of the first binding."""
A2 = tag_of(1, A)
P, Q = 10, 20

Shows = dict[tuple[int, int], tuple[int, int]]
"""By tag and producer: up to which clock it is shown, and where what is not begins."""


class Story:
    """A frontier, a catalog, and what was handed out so far."""

    def __init__(
        self,
        bindings: tuple[tuple[int, tuple[int, ...]], ...] = ((0, (A, B, C)),),
        base: Checkpoint | None = None,
    ) -> None:
        """`bindings`: the cohort of each and the journals it reads."""
        cohorts = tuple(CohortNumber(cohort) for cohort, _ in bindings)
        journals = tuple(np.array(ids, np.int64) for _, ids in bindings)
        self.catalog = JournalCatalog(cohorts, journals, JournalId(9))
        self.whole = merge() if base is None else base
        self.frontier = Frontier(cohorts, self.whole)
        self.now_ms = 0

    def reports(
        self,
        tag: int,
        producer: int,
        *points: tuple[int, int],
        hints: dict[int, tuple[int, ...]] | None = None,
        open_from: int = NONE,
        gone: tuple[int, int, int] | None = None,
        read: int | None = None,
    ) -> None:
        """A slice reports clocks and begins of commits, journals named by clock, and so on."""
        named = [(tag, producer, clock, j) for clock, ids in (hints or {}).items() for j in ids]
        offset = max([begin + 1 for _, begin in points], default=0) if read is None else read
        self.now_ms += 1
        self.frontier.apply(
            SliceProgress(
                points=Points.of([(tag, producer, *point) for point in points]),
                hints=Hints.of([*named]),
                opens=Opens.of([(tag, producer, open_from)]),
                rolled_back=RolledBack.of([] if gone is None else [(tag, producer, *gone)]),
                reads=Reads.of([(tag, offset)]),
            ),
            self.catalog,
            self.now_ms,
        )

    def shows(self) -> Shows | None:
        """What the next checkpoint says of tags and producers, if there is one."""
        delta = self.frontier.next_delta(CheckpointNumber(self.whole.number + 1))
        if delta is None:
            return None
        self.whole = merge(self.whole, delta)
        return shows(delta)


def shows(given: Checkpoint) -> Shows:
    return {(tag, producer): (c, b) for tag, producer, c, b, _ in given.shown.rows()}


def test_a_transaction_waits_for_its_journals_and_nobody_else_does() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B, C)})
    story.reports(A, Q, (21, 6))

    assert story.shows() == {(A, Q): (21, NONE), (A, P): (0, 5)}
    story.reports(B, P, (20, 1), hints={20: (A, C)})
    assert story.shows() is None
    story.reports(C, P, (20, 2), hints={20: (A, B)})
    assert story.shows() == {(A, P): (20, NONE), (B, P): (20, NONE), (C, P): (20, NONE)}


def test_an_open_row_is_shown_once_after_its_ack_also_after_a_restart() -> None:
    story = Story()
    story.reports(A, P, open_from=0, read=2)
    story.reports(A, Q, (11, 1), read=2)
    assert story.shows() == {(A, Q): (11, NONE), (A, P): (0, 0)}
    first = story.whole
    story.reports(A, P, (12, 0), read=3)
    assert story.shows() == {(A, P): (12, NONE)}

    again = Story(base=first)
    assert resume_offsets(first) == {A: 0}
    again.reports(A, P, (12, 0), read=3)
    assert again.shows() == {(A, P): (12, NONE)}
    assert again.shows() is None


def test_journals_that_the_task_does_not_read_are_not_waited_for() -> None:
    story = Story(bindings=((0, (A, B)),))
    story.reports(A, P, (20, 5), hints={20: (B, C)})
    assert story.shows() is None

    story.reports(B, P, (20, 1), hints={20: (A, C)})

    assert story.shows() == {(A, P): (20, NONE), (B, P): (20, NONE)}


def test_journals_of_another_cohort_are_not_waited_for() -> None:
    story = Story(bindings=((0, (A,)), (1, (B,))))

    story.reports(A, P, (20, 5), hints={20: (B,)})

    assert story.shows() == {(A, P): (20, NONE)}


def test_a_journal_under_two_bindings_of_a_cohort_shows_under_both_at_once() -> None:
    story = Story(bindings=((0, (A,)), (0, (A,))))
    story.reports(A, P, (20, 5), hints={20: (A,)})
    assert story.shows() is None

    story.reports(A2, P, (20, 5), hints={20: (A,)})

    assert story.shows() == {(A, P): (20, NONE), (A2, P): (20, NONE)}


def test_a_hint_means_every_tag_of_its_journal_in_the_cohort() -> None:
    story = Story(bindings=((0, (A, B)), (0, (A,))))
    story.reports(B, P, (20, 5), hints={20: (A,)})
    story.reports(A, P, (20, 5), hints={20: (A, B)})
    assert story.shows() is None

    story.reports(A2, P, (20, 5), hints={20: (A, B)})

    assert story.shows() == {(A, P): (20, NONE), (B, P): (20, NONE), (A2, P): (20, NONE)}


def test_a_frontier_lies_between_two_commits() -> None:
    story = Story()
    story.reports(A, P, (20, 5), (30, 7), (40, 9), hints={30: (B,)})

    assert story.shows() == {(A, P): (20, 7)}
    story.reports(B, P, (30, 1), hints={30: (A,)})
    assert story.shows() == {(A, P): (40, NONE), (B, P): (30, NONE)}


def test_commits_above_the_bound_wait_in_other_journals_too() -> None:
    story = Story()
    story.reports(A, P, (30, 7), hints={30: (B,)})
    story.reports(C, P, (25, 3), read=4)
    story.reports(C, P, (35, 4), read=5)

    assert story.shows() == {(C, P): (25, 4), (A, P): (0, 7)}


def test_a_producer_may_wait_in_one_cohort_and_be_shown_in_another() -> None:
    story = Story(bindings=((0, (A, B)), (1, (C,))))
    story.reports(A, P, (30, 7), hints={30: (B,)})
    story.reports(tag_of(1, C), P, (35, 4))

    assert story.shows() == {(tag_of(1, C), P): (35, NONE), (A, P): (0, 7)}


def test_a_hint_that_came_after_its_commit_is_met() -> None:
    story = Story()
    story.reports(B, P, (25, 0))
    story.reports(A, P, (20, 5), hints={20: (B,)})

    assert story.shows() == {(A, P): (20, NONE), (B, P): (25, NONE)}


def test_a_commit_of_another_producer_meets_nothing() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)})
    story.reports(B, Q, (25, 0))

    assert story.shows() == {(B, Q): (25, NONE), (A, P): (0, 5)}


def test_a_hint_is_not_moot_because_its_producer_went_on_elsewhere() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)})
    story.reports(C, P, (50, 3))

    assert story.shows() is None


def test_a_rollback_meets_nothing_and_travels_with_the_checkpoint() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)})
    story.reports(B, P, gone=(3, 6, 18), read=7)

    delta = story.frontier.next_delta(CheckpointNumber(1))

    assert delta is not None
    assert delta.rolled_back.rows() == [(B, P, 3, 6, 18)]
    assert shows(delta) == {(A, P): (0, 5)}
    assert story.frontier.next_delta(CheckpointNumber(2)) is None


def test_a_producer_that_rolled_back_goes_on() -> None:
    story = Story(base=checkpoint(1, {A: 3}, {(A, P): (10, NONE)}))
    story.reports(A, P, (30, 6), gone=(3, 5, 18), read=8)

    assert story.shows() == {(A, P): (30, NONE)}
    assert story.whole.rolled_back.rows() == [(A, P, 3, 5, 18)]


def test_read_offsets_are_never_held_back() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)}, read=90)
    story.reports(C, Q, (1, 0), read=1)
    story.shows()

    assert story.whole.reads.rows() == [(A, 90, 1), (C, 1, 1)]
    assert resume_offsets(story.whole) == {A: 5, C: 1}


def test_nothing_new_is_no_checkpoint() -> None:
    story = Story()
    assert story.shows() is None
    story.reports(A, P, open_from=0, read=4)
    assert story.shows() is None


def test_what_is_waited_for_is_told_oldest_first_and_can_be_let_go() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)})
    story.reports(A, Q, (21, 6), hints={21: (C,)})

    unmet = story.frontier.unmet()
    assert [(u.producer, u.clock, u.source, u.target, u.since_ms) for u in unmet] == [
        (P, 20, A, B, 1),
        (Q, 21, A, C, 2),
    ]
    assert [each.producer for each in story.frontier.release(P)] == [P]
    assert story.shows() == {(A, P): (20, NONE), (A, Q): (0, 6)}
    assert [each.producer for each in story.frontier.release()] == [Q]
    assert story.shows() == {(A, Q): (21, NONE)}


def test_journals_that_are_gone_are_not_waited_for() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B, C)})
    story.frontier.forget(np.array([B]))
    assert story.shows() is None

    story.frontier.forget(np.array([C]))

    assert story.shows() == {(A, P): (20, NONE)}


def test_transactions_that_are_not_shown_are_told_with_their_begins() -> None:
    story = Story()
    story.reports(A, P, (20, 5), hints={20: (B,)}, open_from=8, read=9)
    story.reports(B, Q, open_from=3, read=4)

    assert story.frontier.opened().rows() == [(A, P, 5), (B, Q, 3)]
    assert story.frontier.read_offsets().rows() == [(A, 9), (B, 4)]


def test_a_tag_goes_out_whole_after_a_restart_also_where_it_was_read_less_far() -> None:
    base = checkpoint(1, {A: 200, B: 50}, {(A, P): (5, 100), (A, Q): (6, 130), (B, P): (5, 40)})
    story = Story(base=base)
    story.reports(A, P, (30, 100), read=120)

    assert story.shows() == {(A, P): (30, NONE), (A, Q): (6, NONE)}
    assert resume_offsets(story.whole) == {A: 120, B: 40}


def test_a_prepared_checkpoint_is_reached_when_all_of_it_is_committed_again() -> None:
    base = checkpoint(1, {A: 10}, {(A, P): (5, NONE)})
    prepared = checkpoint(2, {A: 20, B: 9}, {(A, P): (15, NONE), (B, P): (15, NONE)})
    story = Story(base=base)

    assert not story.frontier.reaches(prepared)
    story.reports(A, P, (40, 10), read=30)
    assert not story.frontier.reaches(prepared)
    story.reports(B, P, (15, 0), read=9, hints={15: (A,)})
    assert story.frontier.reaches(prepared)
    story.frontier.hand_out(prepared)
    story.whole = merge(base, prepared)
    assert story.shows() == {(A, P): (40, NONE)}
    assert resume_offsets(story.whole) == {A: 30, B: 9}


def test_hints_of_a_replayed_checkpoint_are_moot() -> None:
    """Whatever A had waited for was settled when it was shown; say, C was deleted since."""
    story = Story()
    prepared = checkpoint(1, {A: 20}, {(A, P): (15, NONE)})
    story.reports(A, P, (15, 10), hints={15: (C,)}, read=20)
    assert story.frontier.reaches(prepared)

    story.frontier.hand_out(prepared)
    story.reports(A, P, (25, 20), read=30)

    assert story.frontier.unmet() == ()
    assert story.shows() == {(A, P): (25, NONE)}


def test_a_tag_that_has_not_reported_stays_as_the_prepared_checkpoint_says() -> None:
    """B was only read and has an open transaction: nothing of it has to be committed again."""
    prepared = checkpoint(1, {A: 20, B: 9}, {(A, P): (15, NONE), (B, Q): (0, 4)})
    story = Story()
    story.reports(A, P, (15, 10), (18, 11), read=20)
    assert story.frontier.reaches(prepared)

    story.frontier.hand_out(prepared)
    story.whole = prepared

    assert story.shows() == {(A, P): (18, NONE)}
    assert resume_offsets(story.whole) == {A: 20, B: 4}
    assert story.frontier.opened().rows() == [(B, Q, 4)]


def test_a_tag_that_reported_a_part_goes_out_whole_after_a_replay() -> None:
    """A had been read up to 50 and is read up to 20: what begins beyond is not known any more."""
    prepared = checkpoint(1, {A: 50}, {(A, P): (15, NONE), (A, Q): (0, 30)})
    story = Story()
    story.reports(A, P, (15, 10), (18, 12), read=20)
    story.frontier.hand_out(prepared)
    story.whole = prepared

    assert story.shows() == {(A, P): (18, NONE), (A, Q): (0, NONE)}
    assert resume_offsets(story.whole) == {A: 20}


def test_a_range_of_a_replayed_checkpoint_is_not_told_twice() -> None:
    gone: list[tuple[int, ...]] = [(A, P, 3, 5, 18)]
    prepared = checkpoint(1, {A: 8}, {(A, P): (30, NONE)}, gone)
    story = Story()
    story.reports(A, P, (30, 6), gone=(3, 5, 18), read=8)
    story.frontier.hand_out(prepared)

    assert story.frontier.next_delta(CheckpointNumber(2)) is None


def test_a_range_beyond_a_replayed_checkpoint_is_told_with_the_next_one() -> None:
    prepared = checkpoint(1, {A: 3}, {(A, P): (10, NONE)})
    story = Story()
    story.reports(A, P, (10, 2), (30, 6), gone=(3, 5, 18), read=8)
    story.frontier.hand_out(prepared)
    story.whole = prepared

    assert story.shows() == {(A, P): (30, NONE)}
    assert story.whole.rolled_back.rows() == [(A, P, 3, 5, 18)]


def test_what_the_last_commit_showed_need_not_be_committed_again() -> None:
    base = checkpoint(1, {B: 4}, {(B, Q): (5, NONE)})
    prepared = checkpoint(2, {B: 9}, {(B, Q): (5, 4)})

    assert Story(base=base).frontier.reaches(prepared)
