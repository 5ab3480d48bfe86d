"""Whole turns of an expensive step, event by event: what is recorded, called and published."""

from __future__ import annotations

import pytest
from tests.unit.pipeline.core.machine_kit import (
    NOW,
    Trace,
    batch,
    failure,
    left,
    made,
    outcome,
    rows,
    share,
    unsettled,
)

from millrace.pipeline.core.call_outcomes import CallResult
from millrace.pipeline.core.call_ranges import CallRange, FrontFailed
from millrace.pipeline.core.call_records import CallRecordKind


def test_no_call_is_made_before_its_intent_which_carries_the_results_before_it() -> None:
    turn = Trace().start()
    turn.read(0, 1).published().called(outcome(0, 1))
    turn.read(2, 3).published().called(outcome(2, 3))
    turn.read(next_=6).published()

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
        "> called",
        "read",
        "> batch",
        "open file 2 for [2, 3]",
        "publish: to 2, rows [0, 1], intent 2-4 x2",
        "> published",
        "SwitchCallFile",
        "call for [2, 3]",
        "> called",
        "read",
        "> batch",
        "settle: to 6, rows [2, 3]",
        "> published",
        "RemoveCallFile",
        "end: over",
    ]


def test_a_turn_without_rows_publishes_nothing() -> None:
    assert Trace(at=4).start().over().lines[-2:] == ["> turn_over", "end: over"]


def test_results_that_wait_are_published_when_the_time_is_over_or_rows_cannot_be_read() -> None:
    for event in ("on_turn_over", "on_read_error"):
        turn = Trace().start().read(0, 1).published().called(outcome(0, 1))

        turn.after(getattr(turn.machine, event), NOW).published()

        assert turn.lines[-4:] == [
            "settle: to 2, rows [0, 1]",
            "> published",
            "RemoveCallFile",
            "end: over",
        ]


def test_a_filter_that_fails_ends_the_turn_behind_the_results_before_it() -> None:
    turn = Trace().start().read(0, 1).published().called(outcome(0, 1))
    failed = FrontFailed("filter", 2, failure(0))

    turn.after(turn.machine.on_batch, CallRange(rows(), 2), failed, NOW).published()

    assert turn.lines[-4:] == [
        "settle: to 2, rows [0, 1], event failed",
        "> published",
        "RemoveCallFile",
        "end: failed",
    ]


# Errors of calls.
def test_a_retry_is_recorded_before_it_is_made() -> None:
    turn = Trace().start().read(0, 1).published().retry().published()

    assert turn.lines[-4:] == ["> retry", "retry: to 0, retry 0-2 x2", "> published", "wait 0"]
    assert turn.called(outcome(0, 1, calls=3, errors=1)).read(2).lines[-1] == (
        "publish: to 2, rows [0, 1], intent 2-3 x1"
    )
    (record,) = turn.publishing().records
    assert (record.totals.calls, record.totals.errors, record.totals.in_doubt) == (4, 1, 0)


def test_a_row_that_fails_ends_the_turn_and_leaves_nothing_in_doubt() -> None:
    turn = Trace().start().read(0, 1, 2, 3).published()

    turn.called(outcome(0, calls=2, errors=1, failed=failure(1))).published()

    assert turn.lines[-5:] == [
        "> called",
        "settle: to 1, rows [0], settled 1-4 x0, event failed",
        "> published",
        "RemoveCallFile",
        "end: failed",
    ]


def test_calls_whose_results_are_dropped_behind_a_failed_row_are_counted_as_in_doubt() -> None:
    turn = Trace(is_async=True).start().read(0, 1, 2, 3).published()

    turn.called(outcome(0, calls=4, errors=1, wasted=2, failed=failure(1)))

    (record,) = turn.publishing().records
    assert (record.totals.calls, record.totals.in_doubt) == (4, 2)


@pytest.mark.parametrize(("on_error", "is_kept"), [("dead_letter", True), ("skip", False)])
def test_a_row_that_is_left_out_becomes_a_dead_letter_if_the_step_keeps_these(
    on_error: str, *, is_kept: bool
) -> None:
    turn = Trace(on_error=on_error).start().read(0, 1, 2).published()

    turn.called(outcome(0, 2, done=3, calls=3, errors=1, left_out=[failure(1)]))
    turn.over()

    assert turn.lines[-4:] == [
        f"count 1 skipped, {int(is_kept)} dead letters",
        "read",
        "> turn_over",
        "settle: to 3, rows [0, 2], settled 3-3 x0" + (", dead [1]" if is_kept else ""),
    ]
    (record,) = turn.publishing().records
    totals = record.totals
    assert (totals.errors, totals.skipped, totals.dead_letters) == (1, 1, int(is_kept))


def test_calls_that_never_return_end_the_turn() -> None:
    turn = Trace().start().read(0, 1).published().called(outcome(0, calls=2, stuck=True))

    assert turn.lines[-1] == "settle: to 1, rows [0], settled 1-2 x0, event stuck"
    assert turn.published().lines[-1] == "end: stuck"


def test_a_worker_that_is_stopped_between_calls_gives_the_unmade_ones_back() -> None:
    turn = Trace(max_calls=10).start().read(0, 1, 2, 3).published().called(outcome(0, 1))

    assert turn.lines[-1] == "settle: to 2, rows [0, 1], settled 2-4 x0, budget -2=2"
    assert turn.published().lines[-1] == "end: over"


# The budget.
def test_a_budget_that_allows_a_part_of_a_batch_is_used_up_and_then_ends_the_turn() -> None:
    turn = Trace(max_calls=5, last_share=share(3, 3)).start()
    turn.read(0, 1, 2).published().called(outcome(0, 1)).published()

    assert turn.lines[3:] == [
        "> batch",
        "open file 0 for [0, 1]",
        "intent: to 0, intent 0-2 x2, budget +2=5",
        "> published",
        "SwitchCallFile",
        "call for [0, 1]",
        "> called",
        "settle: to 2, rows [0, 1]",
        "> published",
        "RemoveCallFile",
        "end: over",
    ]
    spent = Trace(at=2, max_calls=5, last_share=share(2, 5)).start().read(2, 3).published()
    assert spent.lines[-4:] == ["> batch", "settle: to 2, event spent", "> published", "end: spent"]


def test_a_budget_that_another_worker_took_from_first_is_read_again_before_any_call() -> None:
    turn = Trace(max_calls=5).start().read(0, 1, 2)

    turn.budget_moved(share(4, 4)).published()

    assert turn.lines[-7:] == [
        "> budget_moved",
        "DiscardNewCallFile",
        "open file 0 for [0]",
        "intent: to 0, intent 0-1 x1, budget +1=5",
        "> published",
        "SwitchCallFile",
        "call for [0]",
    ]


def test_a_budget_that_another_worker_used_up_meanwhile_ends_the_turn_without_a_call() -> None:
    turn = Trace(max_calls=5).start().read(0, 1, 2).budget_moved(share(5, 5)).published()

    assert turn.lines[-5:] == [
        "> budget_moved",
        "DiscardNewCallFile",
        "settle: to 0, event spent",
        "> published",
        "end: spent",
    ]


def test_a_retry_without_budget_stops_the_calls() -> None:
    turn = Trace(max_calls=2).start().read(0, 1).published().retry()

    assert turn.lines[-1] == "StopCalls"
    turn.called(outcome(0, calls=2, errors=1)).published()
    assert turn.lines[-4:] == [
        "settle: to 1, rows [0], settled 1-2 x0, event spent",
        "> published",
        "RemoveCallFile",
        "end: spent",
    ]


def test_a_retry_takes_one_call_from_the_budget_and_waits_for_its_place_in_the_rate() -> None:
    turn = Trace(rate=10.0).start().read(0, 1).published()
    assert [turn.machine.on_call_due(n, NOW) for n in (0, 1)] == [0, 100_000]

    turn.retry().budget_moved(turn.share or share(0, 0)).published()

    assert turn.lines[-3:] == [
        "retry: to 0, retry 0-2 x2, budget +1=3",
        "> published",
        "wait 200000",
    ]


def test_calls_are_given_back_to_a_budget_that_moved_meanwhile() -> None:
    turn = Trace(max_calls=9).start().read(0, 1).published().called(outcome(calls=0))
    assert turn.lines[-1] == "settle: to 0, settled 0-2 x0, budget -2=0"

    turn.budget_moved(share(3, 5))

    assert turn.lines[-1] == "settle: to 0, settled 0-2 x0, budget -2=3"


# Workers that died.
def test_a_worker_killed_between_intent_and_call_leaves_nothing_in_doubt() -> None:
    turn = Trace(unsettled(0, 2, 2), max_calls=9, last_share=share(2, 2)).start()
    turn.left_calls(batch(0, 1), left(0, 1)).published().read(0, 1)

    assert turn.lines == [
        "> start",
        "ReadLeftCalls",
        "> left_calls",
        "settle: to 0, settled 0-0 x0, budget -2=0",
        "> published",
        "ForgetCallFiles",
        "put back [0, 1]",
        "read",
        "> batch",
        "open file 0 for [0, 1]",
        "intent: to 0, intent 0-2 x2, budget +2=2",
    ]


def test_a_worker_killed_in_a_call_leaves_that_call_in_doubt_and_it_is_made_alone() -> None:
    died_in_second = left(0, 1, 2, marks=[(1, 2, 1)], settled={(0, 1): made(0)})
    turn = Trace(unsettled(0, 3, 3)).start()

    turn.left_calls(batch(0, 1, 2), died_in_second).stored().published().read(1).published()

    assert turn.lines[2:] == [
        "> left_calls",
        "store large values of [[0]]",
        "> large_stored",
        "settle: to 1, rows [0], settled 1-1 x0, event died",
        "> published",
        "ForgetCallFiles",
        "put back [1, 2]",
        "read",
        "> batch",
        "open file 1 for [1]",
        "intent: to 1, intent 1-2 x1",
        "> published",
        "SwitchCallFile",
        "call for [1], attempts {0: 1}, in doubt",
    ]


def test_results_of_a_worker_killed_between_calls_and_publish_are_published_uncalled() -> None:
    settled: dict[tuple[int, int], CallResult] = {(0, 1): made(0), (1, 2): made(1)}
    turn = Trace(unsettled(0, 2, 2)).start()

    turn.left_calls(batch(0, 1), left(0, 1, settled=settled)).stored().published()

    assert turn.lines[2:] == [
        "> left_calls",
        "store large values of [[0], [1]]",
        "> large_stored",
        "settle: to 2, rows [0, 1], settled 2-2 x0",
        "> published",
        "ForgetCallFiles",
        "read",
    ]


def test_recovered_rows_are_published_as_their_large_values_were_stored() -> None:
    turn = Trace(unsettled(0, 1, 1)).start()
    turn.left_calls(batch(0), left(0, settled={(0, 1): made(0)}))

    turn.after(turn.machine.on_large_stored, (rows(4),), NOW)

    assert turn.lines[-1] == "settle: to 1, rows [4], settled 1-1 x0"


def test_a_worker_lost_with_its_host_leaves_its_whole_batch_in_doubt() -> None:
    turn = Trace(unsettled(0, 2, 2)).start().left_calls(batch(0, 1), None)

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0, event died, event died"
    (record,) = turn.publishing().records
    assert record.totals.in_doubt == 2


def test_a_worker_lost_in_a_retry_leaves_as_much_in_doubt_as_in_the_first_call() -> None:
    turn = Trace(unsettled(0, 2, 2, CallRecordKind.RETRY)).start().left_calls(batch(0, 1), None)

    (record,) = turn.publishing().records
    assert record.totals.in_doubt == 2


def test_calls_in_doubt_can_be_left_out() -> None:
    turn = Trace(unsettled(0, 2, 2), on_doubt="skip").start().left_calls(batch(0, 1), None)

    assert turn.lines[-2:] == [
        "count 2 skipped, 2 dead letters",
        "settle: to 2, settled 2-2 x0, dead [0, 1]",
    ]
    assert turn.published().lines[-2:] == ["ForgetCallFiles", "read"]


def test_calls_in_doubt_can_wait_for_the_user() -> None:
    died_in_second = left(0, 1, 2, marks=[(1, 2, 1)], settled={(0, 1): made(0)})
    turn = Trace(unsettled(0, 3, 3), on_doubt="hold").start()

    turn.left_calls(batch(0, 1, 2), died_in_second).stored().published()

    assert turn.lines[-5:] == [
        "> large_stored",
        "hold: to 1, rows [0], intent 1-2 x1, event held",
        "> published",
        "ForgetCallFiles",
        "end: held",
    ]


def test_results_behind_a_gap_are_kept_in_the_next_call_file_until_they_can_be_published() -> None:
    last_returned = left(0, 1, 2, marks=[(0, 1, 1)], settled={(2, 3): made(2)})
    turn = Trace(unsettled(0, 3, 3)).start()

    turn.left_calls(batch(0, 1, 2), last_returned).published()
    turn.read(0).published().called(outcome(0)).read(1, 2).published()

    assert turn.lines[-15:] == [
        "read, whatever the time",
        "> batch",
        "open file 0 for [0], known [2]",
        "intent: to 0, intent 0-1 x1",
        "> published",
        "SwitchCallFile",
        "call for [0], attempts {0: 1}, in doubt",
        "> called",
        "read, whatever the time",
        "> batch",
        "open file 1 for [1, 2], known [2]",
        "publish: to 1, rows [0], intent 1-3 x1",
        "> published",
        "SwitchCallFile",
        "call for [1, 2], known [1]",
    ]
    assert turn.called(outcome(1, 2, calls=1)).lines[-1] == "read"


def test_results_behind_a_gap_that_a_stopped_worker_loses_are_counted_as_in_doubt() -> None:
    last_returned = left(0, 1, 2, marks=[(0, 1, 1)], settled={(2, 3): made(2)})
    turn = Trace(unsettled(0, 3, 3)).start()
    turn.left_calls(batch(0, 1, 2), last_returned).published()

    turn.over()

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0"
    (record,) = turn.publishing().records
    assert record.totals.in_doubt == 2, "the call that was under way, and the result that is lost"


def test_a_batch_whose_results_are_all_known_needs_no_intent() -> None:
    second_returned = left(0, 1, marks=[(0, 1, 1)], settled={(1, 2): made(1)})
    turn = Trace(unsettled(0, 2, 2)).start().left_calls(batch(0, 1), second_returned).published()
    turn.read(0).published().called(outcome(0))

    turn.read(1).published().called(outcome(1, calls=0)).over()

    assert turn.lines[-8:] == [
        "settle: to 1, rows [0]",
        "> published",
        "RemoveCallFile",
        "call for [1], known [0]",
        "> called",
        "read",
        "> turn_over",
        "settle: to 2, rows [1]",
    ]


def test_a_row_that_ended_its_process_too_often_is_given_up_without_a_call() -> None:
    turn = Trace(unsettled(0, 1, 1), retries=0).start()
    turn.left_calls(batch(0), left(0, marks=[(0, 1, 1)])).published().read(0)

    assert turn.lines[-2:] == ["> batch", "call for [0], attempts {0: 1}, in doubt"]


def test_a_death_in_another_run_is_no_attempt_of_this_one() -> None:
    turn = Trace(unsettled(0, 1, 1), retries=0).start()
    turn.left_calls(batch(0), left(0, marks=[(0, 1, 1)], run=1)).published().read(0)

    assert turn.lines[-1] == "intent: to 0, intent 0-1 x1"


def test_the_batch_of_a_batch_function_is_one_call() -> None:
    turn = Trace(rows_kind="batch", max_calls=1).start().read(0, 1, 2).published()

    assert turn.lines[-3:] == ["> published", "SwitchCallFile", "call for [0, 1, 2]"]
    assert turn.called(outcome(0, 1, 2, calls=1)).lines[-1] == "read"


def test_a_call_file_about_other_rows_is_not_believed() -> None:
    turn = Trace(unsettled(0, 2, 2)).start()

    turn.left_calls(batch(0, 1), left(0, 5, settled={(0, 1): made(0)}))

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0, event died, event died"
