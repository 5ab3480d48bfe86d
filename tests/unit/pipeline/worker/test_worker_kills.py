"""Workers killed with SIGKILL at every named point; judged by files that they do not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.pipeline.worker.worker_kills_kit import (
    ARMING,
    BATCH_ROWS,
    CONCURRENCY,
    IN_CALL,
    KILLED,
    called_again,
    calls_under_way,
    expected,
    files,
    in_child,
    lose_host,
    prepare,
    run_job,
    run_until_told,
)
from tests.unit.pipeline.worker.worker_kit import dead, happened, output, totals

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.job_events import JobEventKind
from millrace.testing.fault_injection import POINTS

INSIDE = [point for point in POINTS if point.startswith("worker.")]
HOLDING = ["worker.hold.before", "worker.hold.after"]
FROM_THE_START = [
    "worker.lease.before",
    "worker.lease.after",
    "worker.intent.before",
    "worker.intent.after",
    "worker.publish.before",
    "worker.publish.after",
    "worker.release.before",
    "worker.release.after",
]
AT_ONCE = ("worker.call.after", "worker.intent.before", "worker.intent.after")
"""Tried in the quick form as well: all others are, in the middle of a job."""
LATER = [
    point
    for point in INSIDE
    if point not in (*HOLDING, "worker.intent.before", "worker.intent.after")
]
SEVERAL = ["async", "threads", "unordered", "engine"]
FUSED = {"fused": True}
SKIP = {"on_doubt": "skip"}
HOLD = {"on_doubt": "hold"}


def judge(folder: Path, doubted_max: int, *, is_ordered: bool = True) -> int:
    """Check what came out against a run without faults; how many calls were in doubt."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    try:
        made = output(broker, "pay")
        assert (made if is_ordered else sorted(made, reverse=True)) == expected()
        assert files(folder) == sorted(expected())
        doubted = totals(broker, "pay").in_doubt
        assert len(called_again(folder)) <= doubted <= doubted_max
        assert {event.happened for event in happened(broker)} <= {JobEventKind.DIED}
    finally:
        broker.close()
    return doubted


def quick(*points: str) -> list[object]:
    """Those that the quick form tries, and the others marked as slow."""
    marks = {point: [] if point in AT_ONCE else [pytest.mark.slow] for point in points}
    return [pytest.param(point, marks=mark) for point, mark in marks.items()]


@pytest.mark.parametrize("point", quick(*FROM_THE_START))
def test_a_worker_killed_at_its_first_steps_is_followed_by_one_that_ends_the_job(
    tmp_path: Path, point: str
) -> None:
    prepare(str(tmp_path))
    assert in_child(run_job, str(tmp_path), point, None, {}) == KILLED

    assert in_child(run_job, str(tmp_path), None, None, {}) == 0
    judge(tmp_path, 1)


@pytest.mark.parametrize("point", [*LATER, IN_CALL])
def test_a_worker_killed_in_the_middle_leaves_only_the_call_in_doubt_that_it_was_in(
    tmp_path: Path, point: str
) -> None:
    prepare(str(tmp_path))
    assert in_child(run_job, str(tmp_path), None, point, {}) == KILLED
    under_way = calls_under_way(tmp_path)

    assert in_child(run_job, str(tmp_path), None, None, {}) == 0
    judge(tmp_path, 1)
    assert set(called_again(tmp_path)) <= under_way, "only what was under way is called again"
    if point == IN_CALL:
        assert called_again(tmp_path) == [ARMING]
    if point in ("worker.call.before", "worker.call.after"):
        assert called_again(tmp_path) == []


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("point", quick(*LATER, IN_CALL))
def test_of_several_calls_at_once_those_under_way_are_in_doubt_and_no_others(
    tmp_path: Path, point: str, kind: str
) -> None:
    how = {"kind": kind}
    prepare(str(tmp_path))
    assert in_child(run_job, str(tmp_path), None, point, how) == KILLED
    under_way = calls_under_way(tmp_path)
    assert len(under_way) <= CONCURRENCY

    assert in_child(run_job, str(tmp_path), None, None, how) == 0
    judge(tmp_path, CONCURRENCY, is_ordered=kind != "unordered")
    assert set(called_again(tmp_path)) <= under_way


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("point", quick(*LATER, IN_CALL))
def test_a_cheap_map_fused_in_front_of_paid_calls_costs_no_call(
    tmp_path: Path, point: str, *, is_lost: bool
) -> None:
    prepare(str(tmp_path), fused=True)
    assert in_child(run_job, str(tmp_path), None, point, FUSED) == KILLED
    under_way = calls_under_way(tmp_path)
    if is_lost:
        lose_host(tmp_path)

    assert in_child(run_job, str(tmp_path), None, None, FUSED) == 0
    judge(tmp_path, BATCH_ROWS if is_lost else 1)
    if not is_lost:
        assert set(called_again(tmp_path)) <= under_way


@pytest.mark.parametrize("point", quick(*LATER))
def test_a_worker_lost_with_its_host_leaves_at_most_so_many_rows_in_doubt_as_it_recorded(
    tmp_path: Path, point: str
) -> None:
    prepare(str(tmp_path))
    assert in_child(run_job, str(tmp_path), None, point, {}) == KILLED
    lose_host(tmp_path)

    assert in_child(run_job, str(tmp_path), None, None, {}) == 0
    judge(tmp_path, 2 * BATCH_ROWS)


@pytest.mark.parametrize("is_lost", [False, True])
def test_calls_in_doubt_can_be_left_out(tmp_path: Path, *, is_lost: bool) -> None:
    prepare(str(tmp_path))
    point = "worker.call.after" if is_lost else IN_CALL
    assert in_child(run_job, str(tmp_path), None, point, SKIP) == KILLED
    if is_lost:
        lose_host(tmp_path)

    assert in_child(run_job, str(tmp_path), None, None, SKIP) == 0
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    buried = dead(broker, "pay")
    values = [row["row"]["x"] for row in buried]
    count = len(values)
    assert count <= 2 * BATCH_ROWS if is_lost else count == 1
    assert ARMING in values
    assert {row["error"] for row in buried} == {
        "InDoubt: in doubt: a worker that died may have made this call"
    }
    assert output(broker, "pay") == [v for v in expected() if -v not in values]
    if not is_lost:
        assert called_again(tmp_path) == []
    found = totals(broker, "pay")
    assert (found.in_doubt, found.skipped, found.dead_letters) == (count, count, count)
    broker.close()


@pytest.mark.parametrize(
    ("point", "is_lost"),
    [
        (None, True),
        pytest.param("worker.hold.before", False, marks=pytest.mark.slow),
        ("worker.hold.after", False),
    ],
)
def test_calls_in_doubt_can_wait_for_the_user(
    tmp_path: Path, point: str | None, *, is_lost: bool
) -> None:
    prepare(str(tmp_path))
    assert in_child(run_job, str(tmp_path), None, IN_CALL, HOLD) == KILLED
    if is_lost:
        lose_host(tmp_path)
    if point is not None:
        assert in_child(run_job, str(tmp_path), point, None, HOLD) == KILLED

    assert in_child(run_job, str(tmp_path), None, None, HOLD) == 0
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    told = [event for event in happened(broker) if event.happened is JobEventKind.HELD]
    assert len(told) == 1 + (point == "worker.hold.after")
    count = told[-1].detail["calls"]
    assert 1 <= count <= 2 * BATCH_ROWS if is_lost else count == 1
    assert len(output(broker, "pay")) < len(expected())
    broker.close()

    assert in_child(run_job, str(tmp_path), None, None, {}) == 0
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    assert output(broker, "pay") == expected()
    assert len(called_again(tmp_path)) <= totals(broker, "pay").in_doubt == count
    broker.close()


def test_a_worker_that_is_told_to_end_in_a_call_leaves_nothing_in_doubt(tmp_path: Path) -> None:
    prepare(str(tmp_path))
    assert in_child(run_until_told, str(tmp_path)) == 0
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    assert output(broker, "pay")[-1] == -ARMING
    assert broker.leases("jobs/j/pay") == ()
    broker.close()

    assert in_child(run_job, str(tmp_path), None, None, {}) == 0
    assert judge(tmp_path, 0) == 0
    assert called_again(tmp_path) == []


def test_every_point_of_workers_is_covered() -> None:
    assert {*FROM_THE_START, *LATER, *HOLDING} == set(INSIDE)
    assert len(INSIDE) >= 15
