"""Stages run in the order of what they read, beside each other where they can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest

from millrace.errors import TaskFailed
from millrace.execute.lost_outputs import Lost, OutputsLost
from millrace.execute.stage_scheduler import Cancelled, StageScheduler, Stop
from millrace.ids import AttemptId

WAIT_S = 60
JOIN = [frozenset[int](), frozenset[int](), frozenset({0, 1}), frozenset({2})]


class ReadyStage(NamedTuple):
    """What a caller of the scheduler says of a stage."""

    number: int
    fingerprints: frozenset[str]
    run: Callable[[Stop], None]


def run_all(
    needs: Sequence[frozenset[int]], prepare: Callable[[int], ReadyStage], *, at_once_max: int
) -> None:
    with StageScheduler(needs, at_once_max=at_once_max) as scheduler:
        for number in scheduler.ready():
            try:
                scheduler.start(*prepare(number))
            except OutputsLost as error:
                scheduler.on_lost(error.lost)


def jobs(
    run: Callable[[int, Stop], None], twins: frozenset[int] = frozenset()
) -> Callable[[int], ReadyStage]:
    def prepare(number: int) -> ReadyStage:
        marks = frozenset({"twin" if number in twins else str(number)})
        return ReadyStage(number, marks, lambda stop: run(number, stop))

    return prepare


def lost(number: int) -> OutputsLost:
    attempt = AttemptId.of(1, number, 0, 1)
    return OutputsLost([Lost(attempt=attempt, folder=None, kind="DataLost", text="gone")])


def test_both_sides_of_a_join_run_at_the_same_time_and_the_join_after_them() -> None:
    both = threading.Barrier(2, timeout=WAIT_S)
    order: list[int] = []

    def run(number: int, _: Stop) -> None:
        if number < 2:
            both.wait()  # Passes only when the two are here together.
        order.append(number)

    run_all(JOIN, jobs(run), at_once_max=4)

    assert sorted(order[:2]) == [0, 1]
    assert order[2:] == [2, 3]


@pytest.mark.parametrize(("at_once", "twins"), [(1, frozenset[int]()), (4, frozenset({0, 1}))])
def test_stages_with_the_same_work_or_no_room_run_one_after_the_other(
    at_once: int, twins: frozenset[int]
) -> None:
    alone = threading.Lock()
    order: list[int] = []

    def one_by_one(number: int, _: Stop) -> None:
        assert alone.acquire(blocking=False), "another stage is on its way"
        order.append(number)
        alone.release()

    run_all(JOIN, jobs(one_by_one, twins), at_once_max=at_once)

    assert order == [0, 1, 2, 3]


def test_a_stage_is_prepared_when_what_it_reads_is_done() -> None:
    done: set[int] = set()

    def prepare(number: int) -> ReadyStage:
        assert JOIN[number] <= done
        return ReadyStage(number, frozenset(), lambda _: done.add(number))

    run_all(JOIN, prepare, at_once_max=2)

    assert done == {0, 1, 2, 3}


def test_an_error_cancels_the_others_and_begins_no_more() -> None:
    both = threading.Barrier(2, timeout=WAIT_S)
    ended: list[str] = []

    def run(number: int, stop: Stop) -> None:
        both.wait()
        if number == 0:
            raise TaskFailed("no")
        while True:
            try:
                stop.check()
            except Cancelled:
                ended.append(f"stage {number} was cancelled")
                raise

    with pytest.raises(TaskFailed, match="no"):
        run_all(JOIN, jobs(run), at_once_max=4)

    assert ended == ["stage 1 was cancelled"]


def test_an_interrupt_cancels_all_and_waits_for_their_end() -> None:
    ended: list[int] = []
    begun = threading.Event()

    def run(number: int, stop: Stop) -> None:
        begun.set()
        while True:
            try:
                stop.check()
            except Cancelled:
                ended.append(number)
                raise

    def prepare(number: int) -> ReadyStage:
        if number == 1:
            begun.wait(WAIT_S)
            raise KeyboardInterrupt
        return ReadyStage(number, frozenset(), lambda stop: run(number, stop))

    needs = [frozenset[int](), frozenset({2}), frozenset[int]()]

    def quick(number: int) -> ReadyStage:
        return prepare(number) if number != 2 else ReadyStage(2, frozenset(), lambda _: None)

    with pytest.raises(KeyboardInterrupt):
        run_all(needs, quick, at_once_max=4)

    assert ended == [0]


def test_a_loss_lets_the_others_finish_and_is_raised_with_all_others() -> None:
    both = threading.Barrier(2, timeout=WAIT_S)
    raised = threading.Event()
    order: list[int] = []

    def run(number: int, stop: Stop) -> None:
        both.wait()
        if number == 0:
            raised.set()
            raise lost(0)
        raised.wait(WAIT_S)
        stop.check()
        order.append(number)
        raise lost(1)

    with pytest.raises(OutputsLost) as caught:
        run_all(JOIN, jobs(run), at_once_max=4)

    assert order == [1]
    assert {one.attempt.task.stage_id for one in caught.value.lost} == {0, 1}


def test_a_loss_while_a_stage_is_prepared_counts_as_one() -> None:
    done: list[int] = []

    def prepare(number: int) -> ReadyStage:
        if number == 2:
            raise lost(0)
        return ReadyStage(number, frozenset(), lambda _: done.append(number))

    with pytest.raises(OutputsLost):
        run_all(JOIN, prepare, at_once_max=4)

    assert sorted(done) == [0, 1]


def _note(done: list[int], number: int, stop: Stop) -> None:
    stop.check()
    done.append(number)


def test_a_stage_that_is_skipped_counts_as_done_for_those_that_read_it() -> None:
    done: list[int] = []

    with StageScheduler(JOIN, at_once_max=1) as scheduler:
        for number in scheduler.ready():
            if number in (0, 2):
                scheduler.skip(number)
            else:
                scheduler.start(number, frozenset(), partial(_note, done, number))

    assert done == [1, 3]
