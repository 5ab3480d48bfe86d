"""Whole turns of an expensive step, event by event: what is recorded, called and published."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.pipeline.core.machine_kit import (
    EPOCH,
    LINGER_US,
    Trace,
    failure,
    left,
    made,
    share,
    unsettled,
)

from millrace.pipeline.core.paid_step import WindowLimits
from millrace.pipeline.paid.spend import CallSpend, Spend

LATER = LINGER_US + 1


def two_slots(**options: Any) -> Trace:  # noqa: ANN401 - of any option
    """Two calls at once, none ahead, and four rows."""
    limits = WindowLimits(concurrency=2, ahead_max=0)
    turn = Trace(concurrency=2, limits=limits, **options).start().read(0, 1, 2, 3)
    return turn.idle().published()


def test_no_call_is_made_before_its_record_and_a_free_slot_gets_the_next_call_at_once() -> None:
    turn = two_slots().called(1).idle().published()

    assert turn.lines == [
        "> start",
        "ForgetCallFiles",
        "> rows",
        "> idle",
        "intent: to 0, intent 0-2 x2",
        "> published",
        "start 0, 1",
        "> called",
        "> idle",
        "intent: to 0, intent 0-3 x2",
        "> published",
        "start 2",
    ]


def test_results_are_published_in_order_when_the_rows_before_them_are_done() -> None:
    turn = two_slots().called(1).idle().published().called(0).idle().published()
    turn.called(3).called(2).read().idle().published()

    assert turn.lines[12:] == [
        "> called",
        "> idle",
        "publish: to 2, rows [0, 1], intent 2-4 x2",
        "> published",
        "start 3",
        "> called",
        "> called",
        "> rows",
        "> idle",
        "settle: to 4, rows [2, 3], settled 4-4 x0",
        "> published",
        "end: over",
    ]


def test_results_need_not_wait_for_rows_before_them_if_the_step_says_so() -> None:
    turn = two_slots(ordered=False).called(1).idle().published()

    assert turn.lines[-3:] == [
        "publish: to 0, rows [1], intent 0-3 x2, behind [(1, 2)]",
        "> published",
        "start 2",
    ]
    turn.called(2).idle().published()
    assert turn.lines[-3] == "publish: to 0, rows [2], intent 0-4 x2, behind [(1, 3)]"
    turn.called(0).read().idle(LATER).published().called(3).idle(LATER)
    assert turn.lines[-1] == "settle: to 4, rows [3], settled 4-4 x0"


def test_rows_that_were_published_before_their_turn_are_not_called_again() -> None:
    record = unsettled(0, 3, 2, published=((1, 2),))
    turn = Trace(record, ordered=False).start().left_calls([0, 1, 2], left())

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0, behind [(1, 2)]"
    turn.published().idle().published()
    assert turn.lines[-1] == "start 0, 2"


def test_results_wait_a_little_for_others_to_be_published_with() -> None:
    limits = WindowLimits(concurrency=2, ahead_max=2)
    turn = Trace(concurrency=2, limits=limits).start().read(*range(9)).idle().published()
    turn.called(0).idle()
    assert turn.lines[-1] == f"wait until {LINGER_US}"

    turn.called(1, seconds=0.01).idle(LATER)
    assert turn.lines[-1].startswith("publish: to 2, rows [0, 1], intent 2-")


def test_a_turn_without_rows_publishes_nothing() -> None:
    assert Trace(at=4).start().read(next_=4).idle().lines[-1] == "end: over"


def test_a_turn_that_is_over_waits_for_the_calls_under_way_and_gives_the_others_back() -> None:
    limits = WindowLimits(concurrency=1, ahead_max=2)
    turn = Trace(limits=limits).start().read(0, 1, 2).idle().published()

    turn.over().withdrawn(1).idle().called(0).idle().published()

    assert turn.lines[-10:] == [
        "> turn_over",
        "WithdrawCalls",
        "> withdrawn",
        "> idle",
        "wait",
        "> called",
        "> idle",
        "settle: to 1, rows [0], settled 1-1 x0",
        "> published",
        "end: over",
    ]


# Errors.
def test_a_call_that_raised_is_recorded_and_made_again_before_any_other() -> None:
    limits = WindowLimits(concurrency=1, ahead_max=1, backoff_us=1000)
    turn = Trace(limits=limits).start().read(0, 1, 2, 3).idle().published()
    turn.called(0, failure=failure()).idle()
    assert turn.lines[-1] == "wait until 1000", "the slot takes no other call"

    turn.idle(1000).published()
    assert turn.lines[-1] == "start 0 again (2)"


def test_a_row_that_fails_ends_the_turn_and_results_behind_it_stay_in_the_call_file() -> None:
    turn = two_slots(retries=0).called(0, failure=failure())
    turn.withdrawn().called(1).idle().published()

    assert turn.lines[-3:] == [
        "settle: to 0, intent 0-2 x0, event failed",
        "> published",
        "end: failed, files stay",
    ]


@pytest.mark.parametrize(("on_error", "is_kept"), [("dead_letter", True), ("skip", False)])
def test_a_row_that_is_left_out_becomes_a_dead_letter_if_the_step_keeps_these(
    on_error: str, *, is_kept: bool
) -> None:
    turn = two_slots(on_error=on_error, retries=0).called(0, failure=failure()).called(1).idle()

    assert f"count 1 skipped, {int(is_kept)} dead letters" in turn.lines
    end = ", dead [0]" if is_kept else ""
    assert turn.lines[-1] == f"publish: to 2, rows [1], intent 2-4 x2{end}"


def test_a_busy_provider_is_a_wait_and_no_call() -> None:
    limits = WindowLimits(concurrency=2, ahead_max=0, backoff_us=1000)
    turn = Trace(concurrency=2, limits=limits, retries=0).start().read(0, 1).idle().published()
    turn.called(0, failure=failure(), refused_s=2.0).called(1).read().idle()
    (record,) = turn.publishing().records
    assert (record.totals.calls, record.totals.refused, record.totals.errors) == (1, 1, 0)

    turn.published().idle()
    assert turn.lines[-1] == "wait until 2000000"
    turn.idle(2_000_000).published()
    assert turn.lines[-1] == "start 0"


def test_a_provider_that_never_answers_fails_the_call_in_the_end() -> None:
    limits = WindowLimits(backoff_us=1000, refusals_max=1, ahead_max=0)
    turn = Trace(limits=limits, retries=0, on_error="skip").start().read(0).idle().published()
    turn.called(0, failure=failure(), refused_s=0.0).read().idle().published().idle(1000)
    turn.published().called(0, failure=failure(), refused_s=0.0).idle()

    (record,) = turn.publishing().records
    totals = record.totals
    assert (totals.calls, totals.refused, totals.errors, totals.skipped) == (1, 1, 1, 1)


def test_a_batch_that_raised_is_halved_behind_its_last_attempt() -> None:
    turn = Trace(rows_kind="batch", retries=0, on_error="skip").start().read(0, 1, 2)
    turn.read().idle().published().called(0, failure=failure()).idle().published()

    assert turn.lines[-1] == "start 0, 1-3"


# Money.
def test_the_cost_of_each_call_is_counted_and_charged() -> None:
    noted = CallSpend(spend=Spend(tokens_in=7, nano_usd=30), model="m")
    turn = two_slots().called(0, noted=noted).called(1, failure=failure(), noted=noted).idle()

    change = turn.publishing()
    assert change.records[0].totals.spend == Spend(tokens_in=14, nano_usd=60)
    assert [(charge.offset, charge.error) for charge in change.charges] == [
        (0, ""),
        (1, "ValueError"),
    ]
    assert change.records[0].outcomes == 2


def test_a_budget_is_taken_with_the_record_and_what_is_not_needed_is_given_back() -> None:
    turn = Trace(max_calls=3, last_share=share(2, 2)).start().read(0, 1, 2).idle()
    assert turn.lines[-1] == "intent: to 0, intent 0-1 x1, budget +1=3"

    turn.published().called(0).idle().withdrawn().idle()
    assert turn.lines[-1] == "settle: to 1, rows [0], settled 1-1 x0, event spent"
    assert turn.published().lines[-1] == "end: spent"


def test_a_budget_that_another_worker_took_from_first_is_read_again_before_any_call() -> None:
    turn = Trace(max_calls=5).start().read(0, 1, 2).idle().budget_moved(share(4, 4)).idle()

    assert turn.lines[-1] == "intent: to 0, intent 0-1 x1, budget +1=5"


# Workers that died.
def test_a_worker_killed_between_record_and_call_leaves_nothing_in_doubt() -> None:
    turn = Trace(unsettled(0, 2, 2)).start().left_calls([0, 1], left())
    (record,) = turn.publishing().records

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0"
    assert (record.totals.calls, record.totals.in_doubt) == (0, 0)


def test_a_worker_killed_in_a_call_leaves_that_call_in_doubt_and_it_is_made_alone() -> None:
    turn = Trace(unsettled(0, 3, 3)).start()
    turn.left_calls([0, 1, 2], left((1, 2, 1), results={0: made(0)})).published().read()
    turn.idle().published()

    assert turn.lines[2:] == [
        "> left_calls",
        "settle: to 1, rows [0], settled 1-1 x0, event died",
        "> published",
        "ForgetCallFiles",
        "> rows",
        "> idle",
        "intent: to 1, intent 1-2 x1",
        "> published",
        "start 1 again (2) in doubt",
    ]


def test_results_behind_a_call_in_doubt_are_kept_in_the_file_of_this_turn() -> None:
    turn = Trace(unsettled(0, 3, 3)).start()
    turn.left_calls([0, 1, 2], left((0, 1, 1), results={2: made(2)})).published()

    assert turn.lines[-5:] == [
        "> left_calls",
        "keep [2]",
        "settle: to 0, intent 0-3 x0, event died",
        "> published",
        "ForgetCallFiles",
    ]


def test_outcomes_that_no_record_counts_are_counted_and_charged() -> None:
    record = unsettled(0, 2, 2, outcomes=1)
    turn = Trace(record).start().left_calls([0, 1], left(results={0: made(0), 1: made(1)}, usd=5))
    change = turn.publishing()

    assert change.records[0].totals.nano_usd == 5, "the first is counted by the record already"
    assert [charge.offset for charge in change.charges] == [1]


def test_a_worker_lost_with_its_host_leaves_all_in_doubt_that_it_recorded() -> None:
    turn = Trace(unsettled(0, 2, 2)).start().left_calls([0, 1], None)
    (record,) = turn.publishing().records

    assert turn.lines[-1] == "settle: to 0, settled 0-0 x0, event died, event died"
    assert record.totals.in_doubt == 2


def test_calls_in_doubt_can_be_left_out() -> None:
    turn = Trace(unsettled(0, 2, 2), on_doubt="skip").start().left_calls([0, 1], None)

    assert turn.lines[-2:] == [
        "count 2 skipped, 2 dead letters",
        "settle: to 2, settled 2-2 x0, dead [0, 1]",
    ]


def test_calls_in_doubt_can_wait_for_the_user() -> None:
    turn = Trace(unsettled(0, 3, 3), on_doubt="hold").start()
    turn.left_calls([0, 1, 2], left((1, 2, 1), results={0: made(0)})).published()

    assert turn.lines[-4:] == [
        "> left_calls",
        "hold: to 0, event held",
        "> published",
        "end: held, files stay",
    ]


def test_a_death_in_another_run_is_no_attempt_of_this_one() -> None:
    turn = Trace(unsettled(0, 1, 1), retries=0).start()
    turn.left_calls([0], left((0, 1, 1), run=1)).published().read().idle().published()

    assert turn.lines[-1] == "start 0 in doubt"


def test_a_row_that_ended_its_process_too_often_is_given_up_without_a_call() -> None:
    turn = Trace(unsettled(0, 1, 1), retries=0, on_error="skip").start()
    turn.left_calls([0], left((0, 1, 1))).published().read().idle()

    assert turn.lines[-1] == "end: over"
    assert not [line for line in turn.lines if line.startswith("start")]


def test_a_record_names_the_epoch_of_the_lease() -> None:
    turn = Trace().start().read(0).read().idle()
    assert turn.publishing().records[0].epoch == EPOCH
