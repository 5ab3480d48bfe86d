"""What a checkpoint holds, and how one is laid over another."""

from __future__ import annotations

import numpy as np

from millrace.reads.model.checkpoint import (
    BEGINNING,
    Checkpoint,
    CheckpointNumber,
    ReadOffsets,
    RolledBack,
    ShownClock,
    find_pairs,
    merge,
    resume_offsets,
    shown_to,
    without_done,
)
from millrace.reads.model.number_tables import NONE

A, B, C = 1, 2, 3
P, Q = 10, 20


def checkpoint(
    number: int,
    reads: dict[int, int] | None = None,
    shown: dict[tuple[int, int], tuple[int, int]] | None = None,
    gone: list[tuple[int, ...]] | None = None,
) -> Checkpoint:
    """From read offsets by tag, and clock and begin by tag and producer."""
    return Checkpoint(
        number=CheckpointNumber(number),
        reads=ReadOffsets.of([(tag, offset, number) for tag, offset in (reads or {}).items()]),
        shown=ShownClock.of([(*pair, *value, number) for pair, value in (shown or {}).items()]),
        rolled_back=RolledBack.of(gone or []),
    )


def test_what_a_later_checkpoint_says_replaces_what_an_earlier_one_said() -> None:
    one = checkpoint(1, {A: 10, B: 10}, {(A, P): (5, 7), (B, P): (5, NONE)})
    two = checkpoint(2, {A: 20}, {(A, P): (9, NONE), (A, Q): (3, 12)})

    whole = merge(one, two)

    assert whole.number == 2
    assert whole.reads.rows() == [(A, 20, 2), (B, 10, 1)]
    assert whole.shown.rows() == [(A, P, 9, NONE, 2), (A, Q, 3, 12, 2), (B, P, 5, NONE, 1)]


def test_a_read_offset_may_go_back() -> None:
    assert resume_offsets(merge(checkpoint(1, {A: 20}), checkpoint(2, {A: 15}))) == {A: 15}


def test_nothing_laid_over_nothing_is_the_beginning() -> None:
    assert merge().number == BEGINNING
    assert len(merge(Checkpoint(), Checkpoint()).shown) == 0


def test_ranges_of_all_checkpoints_are_kept_once() -> None:
    one = checkpoint(1, gone=[(A, P, 3, 5, 18)])
    two = checkpoint(2, gone=[(A, P, 3, 5, 18), (A, P, 8, 9, 21)])

    assert merge(two, one).rolled_back.rows() == [(A, P, 3, 5, 18), (A, P, 8, 9, 21)]


def test_reads_resume_at_the_lower_of_read_offset_and_earliest_begin() -> None:
    given = checkpoint(
        1,
        {A: 50, B: 50, C: 50},
        {(A, P): (5, 30), (A, Q): (5, 20), (B, P): (5, NONE), (C, P): (5, 60)},
    )

    assert resume_offsets(given) == {A: 20, B: 50, C: 50}


def test_ranges_below_what_is_shown_are_left_out() -> None:
    shown = {(A, P): (18, NONE), (B, P): (17, NONE)}
    gone: list[tuple[int, ...]] = [(A, P, 3, 5, 18), (B, P, 3, 5, 18), (C, P, 3, 5, 18)]

    kept = without_done(checkpoint(4, {A: 9}, shown, gone))

    assert kept.rolled_back.rows() == gone[1:]
    assert (kept.number, kept.reads.rows(), len(kept.shown)) == (4, [(A, 9, 4)], 2)


def test_pairs_are_found_where_they_stand() -> None:
    tags, producers = np.array([A, A, C]), np.array([P, Q, P])

    places, found = find_pairs(
        tags, producers, np.array([C, B, A, C, A]), np.array([P, P, Q, Q, 5])
    )

    assert found.tolist() == [True, False, True, False, False]
    assert places.tolist() == [2, 0, 1, 0, 0]


def test_what_was_never_shown_is_shown_up_to_nothing() -> None:
    whole = merge(checkpoint(1, shown={(A, P): (2**64 - 1, NONE)}))

    assert shown_to(whole.shown, np.array([A, A]), np.array([P, Q])).tolist() == [2**64 - 1, 0]
    assert shown_to(ShownClock.empty(), np.array([A]), np.array([P])).tolist() == [0]


def test_a_checkpoint_travels_as_bytes() -> None:
    given = checkpoint(7, {A: 3}, {(A, P): (2**64 - 1, NONE)}, [(A, P, 3, 5, 18)])

    found = Checkpoint.from_bytes(7, given.to_bytes())

    assert found.number == 7
    assert found.reads.rows() == given.reads.rows()
    assert found.shown.rows() == given.shown.rows()
    assert found.rolled_back.rows() == given.rolled_back.rows()
