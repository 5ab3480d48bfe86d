"""Whole publishes, event by event: transactions, lost answers, and workers that were faster."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.unit.pipeline.core.machine_kit import NOW, rows, share, unsettled
from tests.unit.pipeline.worker.worker_kit import NUMBERS, hop, map_step

from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import KeyBy
from millrace.pipeline.core.publish_machine import (
    OffsetCommit,
    PublishMachine,
    ReadCallRecords,
    ReadCommitted,
    ReadTails,
    ReportBudgetMoved,
    ReportLeaseLost,
    ReportPublished,
    SendAgain,
    SendTransaction,
    SkipPublish,
    kept_partition,
)
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_budget import BudgetTail

GROUP, UNIT, CALLS, BUDGET = "jobs/j/pay", "src/0", "jobs/j/pay/recorded/5", "jobs/j/pay/reserved"
INTENT = unsettled(4, 6, 2)
OTHER = replace(INTENT, epoch=99)
RESULTS = UnitPublish(next=6, outputs=(rows(4, 5).batch,))
EVERYTHING = UnitPublish(
    next=6, outputs=(rows(4, 5).batch,), records=(INTENT,), budget=(share(2, 2),)
)
RETRY = UnitPublish(next=4, records=(INTENT,), budget=(share(1, 3),))


def machine(*, is_new: bool = False) -> PublishMachine:
    step = map_step("pay", print, expensive=True, max_calls=9)
    out = PublishMachine(hop(step), UNIT, 5, at=4, is_new=is_new, calls_end=10)
    out.on_budget(BudgetTail(None, 20))
    return out


def test_a_transaction_expects_all_that_the_worker_last_saw() -> None:
    publishing = machine()

    sent = publishing.on_publish(EVERYTHING)

    assert isinstance(sent, SendTransaction)
    assert [(part.journal, part.expected) for part in sent.appends] == [
        ("jobs/j/pay/out/0", None),
        (CALLS, 10),
        (BUDGET, 20),
    ]
    assert sent.commit == OffsetCommit(group=GROUP, journal=UNIT, offset=6, expected=4)
    assert publishing.on_answer({CALLS: 12, BUDGET: 22}) == ReportPublished()
    assert (publishing.at, publishing.calls_end) == (6, 12)
    assert publishing.budget == BudgetTail(share(2, 2), 22)


def test_the_first_commit_of_a_unit_expects_that_there_was_none() -> None:
    publishing = machine(is_new=True)

    sent = publishing.on_publish(RESULTS)

    assert isinstance(sent, SendTransaction)
    assert sent.commit == OffsetCommit(group=GROUP, journal=UNIT, offset=6, expected=None)
    publishing.on_answer({})
    again = publishing.on_publish(UnitPublish(next=8))
    assert isinstance(again, SendTransaction)
    assert again.commit == OffsetCommit(group=GROUP, journal=UNIT, offset=8, expected=6)


def test_nothing_is_sent_for_a_change_of_nothing() -> None:
    assert machine().on_publish(UnitPublish(next=4)) == SkipPublish()
    assert isinstance(machine().on_publish(UnitPublish(next=4), has_files=True), SendTransaction)


# Lost answers.
def test_a_lost_answer_of_a_transaction_that_was_carried_out_is_not_sent_again() -> None:
    publishing = machine()
    publishing.on_publish(EVERYTHING)

    assert publishing.on_answer_lost() == ReadCommitted(GROUP, UNIT)
    assert publishing.on_committed(6) == ReadTails(CALLS, BUDGET)
    assert publishing.on_tails(12, BudgetTail(share(2, 2), 22)) == ReportPublished()
    assert (publishing.at, publishing.calls_end, publishing.budget) == (
        6,
        12,
        BudgetTail(share(2, 2), 22),
    )


def test_a_lost_answer_of_a_transaction_that_was_not_carried_out_is_sent_again_unchanged() -> None:
    publishing = machine()
    first = publishing.on_publish(RESULTS)

    assert publishing.on_answer_lost() == ReadCommitted(GROUP, UNIT)
    assert publishing.on_committed(4) == SendAgain()
    assert publishing.on_publish(RESULTS) == first
    assert publishing.on_answer({}) == ReportPublished()


def test_a_transaction_that_arrives_after_its_answer_was_given_up_is_found_by_the_conflict() -> (
    None
):
    publishing = machine()
    publishing.on_publish(RESULTS)
    publishing.on_answer_lost()
    assert publishing.on_committed(4) == SendAgain()
    publishing.on_publish(RESULTS)

    assert publishing.on_conflict() == ReadCommitted(GROUP, UNIT)
    assert publishing.on_committed(6) == ReportPublished()
    assert publishing.at == 6


def test_a_lost_answer_after_the_lease_was_lost_is_decided_by_the_next_sending() -> None:
    publishing = machine()
    publishing.on_publish(RESULTS)

    publishing.on_answer_lost()
    assert publishing.on_committed(5) == SendAgain()
    publishing.on_publish(RESULTS)
    publishing.on_conflict()
    assert publishing.on_committed(5) == ReportLeaseLost()
    assert publishing.at == 4


def test_a_lost_answer_of_a_retry_is_judged_by_the_record_of_calls() -> None:
    for end, records, action in (
        (10, [], SendAgain()),
        (12, [INTENT], ReadTails(CALLS, BUDGET)),
        (12, [OTHER], SendAgain()),
    ):
        publishing = machine()
        publishing.on_publish(RETRY)

        assert publishing.on_answer_lost() == ReadCallRecords(CALLS, 10)
        assert publishing.on_calls(end, records) == action


def test_a_lost_answer_of_events_alone_is_sent_again() -> None:
    event = JobEvent(at_us=NOW, run=1, happened=JobEventKind.FAILED, step="pay")
    publishing = machine()
    publishing.on_publish(UnitPublish(next=4, events=(event,)))

    assert publishing.on_answer_lost() == SendAgain()


# Others were faster.
@pytest.mark.parametrize("committed", [None, 5, 9])
def test_a_unit_that_another_worker_moved_on_is_lost(committed: int | None) -> None:
    publishing = machine()
    publishing.on_publish(RESULTS)

    assert publishing.on_conflict() == ReadCommitted(GROUP, UNIT)
    assert publishing.on_committed(committed) == ReportLeaseLost()
    assert publishing.at == 4


def test_a_record_of_calls_that_another_worker_wrote_is_a_lost_lease() -> None:
    publishing = machine()
    publishing.on_publish(RETRY)

    assert publishing.on_conflict() == ReadCallRecords(CALLS, 10)
    assert publishing.on_calls(12, [OTHER]) == ReportLeaseLost()


def test_a_budget_that_another_worker_took_from_first_is_told_from_a_lost_lease() -> None:
    for change in (EVERYTHING, RETRY):
        publishing = machine()
        publishing.on_publish(change)
        look = publishing.on_conflict()

        told = (
            publishing.on_committed(4)
            if isinstance(look, ReadCommitted)
            else publishing.on_calls(10, [])
        )

        assert told == ReportBudgetMoved()
        assert (publishing.at, publishing.calls_end) == (4, 10)


def test_a_conflict_without_a_budget_is_never_blamed_on_one() -> None:
    publishing = machine()
    publishing.on_publish(RESULTS)
    publishing.on_conflict()

    assert publishing.on_committed(4) == ReportLeaseLost()


# Where rows go.
def test_rows_with_a_key_go_to_the_partition_of_their_key_and_others_stay_together() -> None:
    step = KeyBy(name="k", schema=NUMBERS, keys=("x",), partitions=3)
    keyed = PublishMachine(hop(step, partitions=3), UNIT, 5, at=0, is_new=True)
    plain = PublishMachine(hop(map_step("pay", print), partitions=3), "src/7", 5, at=0, is_new=True)
    change = UnitPublish(next=9, outputs=(rows(*range(9)).batch,))

    by_key, together = keyed.on_publish(change), plain.on_publish(change)

    assert isinstance(by_key, SendTransaction)
    assert isinstance(together, SendTransaction)
    assert len(by_key.appends) == 3
    values = [v for part in by_key.appends for v in pa.table(part.rows)["x"].to_pylist()]
    assert sorted(values) == [10 * n for n in range(9)]
    assert [part.journal for part in together.appends] == ["jobs/j/pay/out/1"]
    assert kept_partition("src/7", 3) == kept_partition("other/7", 3) == 1
