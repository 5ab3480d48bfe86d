"""Intents recorded while calls are under way: what is recorded, published and in doubt."""

from __future__ import annotations

import numpy as np
from tests.unit.pipeline.core.machine_kit import (
    NOW,
    Trace,
    batch,
    failure,
    left,
    made,
    outcome,
    unsettled,
)

from millrace.pipeline.core.call_outcomes import CallMark, LeftCalls
from millrace.pipeline.core.worker_deaths import Death, Deaths


def test_the_intent_of_the_next_batch_is_recorded_while_calls_are_under_way() -> None:
    turn = Trace().start()
    turn.read(0, 1).published()
    turn.read(2, 3).published().called(outcome(0, 1))
    turn.read(4, 5).published().called(outcome(2, 3))
    turn.read(next_=6).published().called(outcome(4, 5)).published()

    assert turn.lines == [
        "> start",
        "ForgetCallFiles",
        "read",
        "> batch",
        "open file 0 for [0, 1]",
        "intent: to 0, intent 0-2 x2",
        "> published",
        "SwitchCallFile",
        "call for [0, 1]",
        "> batch",
        "open file 2 for [2, 3]",
        "intent: to 0, intent 0-4 x4",
        "> published",
        "RemoveCalledFiles",
        "> called",
        "NextCallFile",
        "call for [2, 3]",
        "> batch",
        "open file 4 for [4, 5]",
        "publish: to 2, rows [0, 1], intent 2-6 x4",
        "> published",
        "RemoveCalledFiles",
        "> called",
        "NextCallFile",
        "call for [4, 5]",
        "> batch",
        "publish: to 4, rows [2, 3], intent 4-6 x2",
        "> published",
        "RemoveCalledFiles",
        "> called",
        "settle: to 6, rows [4, 5]",
        "> published",
        "RemoveCallFile",
        "end: over",
    ]


def test_results_of_quick_calls_behind_slow_ones_are_published_together() -> None:
    turn = Trace().start().read(0, 1).published()
    turn.read(2, 3).published().called(outcome(0, 1)).called(outcome(2, 3))

    assert turn.read(4).lines[-2:] == [
        "open file 4 for [4]",
        "publish: to 4, rows [0, 1, 2, 3], intent 4-5 x1",
    ]
    (record,) = turn.publishing().records
    assert record.totals.calls == 5


def test_a_retry_covers_all_calls_that_may_be_in_doubt() -> None:
    turn = Trace().start().read(0, 1).published()
    assert turn.retry().lines[-1] == "retry: to 0, retry 0-2 x2"
    turn.published().read(2, 3).published()
    assert turn.retry().lines[-1] == "retry: to 0, retry 0-4 x4"
    turn.published().called(outcome(0, 1, calls=4, errors=2))

    assert turn.retry().lines[-1] == "retry: to 0, retry 0-4 x4", "results still wait"
    turn.published().read(4).published()
    assert turn.retry().lines[-1] == "retry: to 2, retry 2-5 x3"


def test_a_row_that_fails_gives_back_the_calls_that_were_recorded_ahead() -> None:
    turn = Trace().start().read(0, 1).published().read(2, 3).published()

    turn.called(outcome(0, calls=2, errors=1, failed=failure(1)))

    assert turn.lines[-1] == "settle: to 1, rows [0], settled 1-4 x0, event failed"
    (record,) = turn.publishing().records
    assert (record.totals.calls, record.totals.in_doubt) == (2, 0)


def test_a_worker_that_is_stuck_gives_back_the_calls_that_were_recorded_ahead() -> None:
    turn = Trace().start().read(0, 1).published().read(2, 3).published()

    turn.called(outcome(0, 1, stuck=True))

    assert turn.lines[-1] == "settle: to 2, rows [0, 1], settled 2-4 x0, event stuck"
    (record,) = turn.publishing().records
    assert record.totals.calls == 2


def test_a_worker_that_is_stopped_before_the_calls_recorded_ahead_leaves_nothing_in_doubt() -> None:
    turn = Trace().start().read(0, 1).published().read(2, 3).published().called(outcome(0, 1))

    turn.called(outcome(calls=0))

    assert turn.lines[-1] == "settle: to 2, rows [0, 1], settled 2-4 x0"
    (record,) = turn.publishing().records
    assert record.totals.calls == 2


def test_a_turn_that_ends_while_calls_are_under_way_publishes_what_waits() -> None:
    turn = Trace().start().read(0, 1).published().read(2, 3).published().called(outcome(0, 1))

    turn.over()

    assert turn.lines[-1] == "publish: to 2, rows [0, 1], intent 2-4 x2"
    assert turn.published().called(outcome(2, 3)).lines[-1] == "read"
    assert turn.over().lines[-1] == "settle: to 4, rows [2, 3]"


def test_rows_that_cannot_be_read_ahead_end_the_turn_behind_the_calls() -> None:
    turn = Trace().start().read(0, 1).published()

    assert turn.after(turn.machine.on_read_error, NOW).actions == []
    assert turn.called(outcome(0, 1)).lines[-1] == "settle: to 2, rows [0, 1]"
    assert turn.published().lines[-1] == "end: over"


def test_calls_in_doubt_and_calls_of_a_budget_are_made_batch_by_batch() -> None:
    budget = Trace(max_calls=9).start().read(0, 1).published()
    assert not budget.machine.goes_ahead

    died = Deaths([Death(step="pay", first=0, next=1, attempts=1)])
    deadly = Trace(deaths=died, retries=3).start().read(0).published()
    assert not deadly.machine.goes_ahead

    ordinary = Trace().start().read(0, 1).published()
    assert ordinary.machine.goes_ahead
    assert not ordinary.read(2).published().machine.goes_ahead, "one batch ahead is enough"


def test_a_batch_that_ended_a_process_gets_its_intent_behind_the_calls_before_it() -> None:
    died = Deaths([Death(step="pay", first=2, next=3, attempts=1)])
    turn = Trace(deaths=died, retries=3).start().read(0, 1).published()

    assert turn.read(2).actions == []
    assert turn.called(outcome(0, 1)).lines[-2:] == [
        "open file 2 for [2]",
        "publish: to 2, rows [0, 1], intent 2-3 x1",
    ]


# What a dead worker leaves.
def test_two_call_files_tell_which_calls_of_both_batches_were_under_way() -> None:
    first = left(0, 1, settled={(0, 1): made(0), (1, 2): made(1)})
    second = left(2, 3, marks=[(0, 1, 1)])
    turn = Trace(unsettled(0, 4, 4)).start()

    turn.left_calls(batch(0, 1, 2, 3), first.joined(second)).stored()

    assert turn.lines[-1].startswith("settle: to 2, rows [0, 1], settled 2-2 x0")
    assert turn.lines[-1].endswith("event died")
    (record,) = turn.publishing().records
    # Of four calls that were planned, the one for row 3 was not begun.
    assert (record.totals.calls, record.totals.in_doubt) == (3, 1)


def test_of_two_batches_only_the_one_that_was_called_for_counts() -> None:
    first = left(0, 1, settled={(0, 2): made(0, 1)})
    turn = Trace(unsettled(0, 4, 2), rows_kind="batch").start()

    turn.left_calls(batch(0, 1, 2, 3), first.joined(left(2, 3))).stored()

    (record,) = turn.publishing().records
    assert (record.totals.calls, record.totals.in_doubt) == (1, 0)


def test_joined_call_files_name_rows_by_their_place_in_both() -> None:
    second = left(2, 3, marks=[(1, 2, 5)], settled={(0, 1): failure(0)})
    second.raised = [1]

    both = left(0, 1).joined(second)

    assert both == LeftCalls(
        header={"run": 7},
        step="pay",
        offsets=both.offsets,
        marks=[CallMark(3, 4, 5)],
        settled={(2, 3): failure(2)},
        raised=[3],
        batches=(0, 2),
    )
    assert np.array_equal(both.offsets, [0, 1, 2, 3])


def test_two_batches_without_call_files_are_two_calls_in_doubt() -> None:
    for on_doubt in ("retry", "skip"):
        turn = Trace(unsettled(0, 4, 2), rows_kind="batch", on_doubt=on_doubt).start()

        turn.left_calls(batch(0, 1, 2, 3), None)

        (record,) = turn.publishing().records
        assert (record.totals.calls, record.totals.in_doubt) == (2, 2)
