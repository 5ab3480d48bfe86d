"""Functions that raise, return the wrong thing, hang, or end the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import (
    Bench,
    dead,
    fill,
    filter_step,
    happened,
    hop,
    map_step,
    output,
    totals,
)

from millrace.errors import MillraceError
from millrace.journal.core.values import Publish, Published
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.calling import call_thread
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.paid.call_errors import AnswerUnusable, NotAllowed

Row = dict[str, Any]


class Poison:
    """Raises for some values, and remembers whom it was called for."""

    def __init__(self, *bad: int, times: int = 1_000_000) -> None:
        self.bad, self.times = dict.fromkeys(bad, times), times
        self.called: list[int] = []
        self.batches: list[list[int]] = []

    def row(self, row: Row) -> Row:
        self.called.append(row["x"])
        self._check(row["x"])
        return {"x": -row["x"]}

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch["x"].to_pylist()
        self.batches.append(values)
        for value in values:
            self._check(value)
        return pa.record_batch({"x": pa.array([-value for value in values], pa.int64())})

    def _check(self, value: int) -> None:
        if self.bad.get(value, 0) > 0:
            self.bad[value] -= 1
            raise ValueError(f"poison {value}")


def bench_of(folder: Path, step: Any, rows: int = 20) -> Bench:  # noqa: ANN401 - any step
    bench = Bench(folder, [hop(step)])
    fill(bench.broker, range(rows))
    return bench


def test_nobody_calls_once_more_in_a_run_what_a_step_gave_up_on(tmp_path: Path) -> None:
    poison = Poison(13)
    step = map_step("f", poison.row, expensive=True, batch_rows=5, retries=0)
    bench = bench_of(tmp_path, step)
    bench.run()
    before = list(poison.called)

    outcome = bench.worker("another").run()

    assert outcome.ended == "failed"
    assert poison.called == before
    assert before.count(13) == 1


@pytest.mark.parametrize("expensive", [True, False])
def test_a_row_that_raises_fails_the_step_and_all_before_it_is_published(
    tmp_path: Path, *, expensive: bool
) -> None:
    poison = Poison(13)
    step = map_step("f", poison.row, expensive=expensive, batch_rows=5, retries=2)
    bench = bench_of(tmp_path, step)

    (outcome,) = bench.run()

    assert outcome.ended == "failed"
    assert output(bench.broker, "f") == [-value for value in range(13)]
    assert bench.broker.committed("jobs/j/f", "jobs/j/src/out/0") == 13
    (event,) = happened(bench.broker)
    assert (event.happened, event.step) == (JobEventKind.FAILED, "f")
    assert (event.detail["offset"], event.detail["attempts"]) == (13, 3)
    assert event.detail["error"] == "ValueError: poison 13"
    assert "in _check" in event.detail["traceback"]
    assert "/millrace/pipeline/" not in event.detail["traceback"]


def test_after_a_failure_the_next_run_goes_on_at_the_row_that_failed(tmp_path: Path) -> None:
    poison = Poison(13, times=1)
    bench = bench_of(tmp_path, map_step("f", poison.row, expensive=True, batch_rows=5, retries=0))
    bench.run()
    assert totals(bench.broker, "f").calls == 14

    bench.again().run()

    assert output(bench.broker, "f") == [-value for value in range(20)]
    assert sorted(poison.called) == sorted([*range(20), 13])
    found = totals(bench.broker, "f")
    assert (found.calls, found.errors, found.in_doubt) == (21, 1, 0)


@pytest.mark.parametrize("expensive", [True, False])
def test_a_call_that_raises_is_made_again_as_often_as_the_step_says(
    tmp_path: Path, *, expensive: bool
) -> None:
    poison = Poison(3, 11, times=2)
    bench = bench_of(tmp_path, map_step("f", poison.row, expensive=expensive, retries=2))

    (outcome,) = bench.run()

    assert output(bench.broker, "f") == [-value for value in range(20)]
    assert sorted(poison.called) == sorted([*range(20), 3, 3, 11, 11])
    assert (outcome.calls["f"], outcome.errors["f"]) == (24, 4)
    if expensive:
        assert totals(bench.broker, "f").calls == 24
        assert totals(bench.broker, "f").errors == 4


@pytest.mark.parametrize("expensive", [True, False])
@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_poison_rows_are_left_out_and_all_others_come_through(
    tmp_path: Path, on_error: str, *, expensive: bool
) -> None:
    poison = Poison(0, 7, 19)
    step = map_step("f", poison.row, expensive=expensive, retries=1, on_error=on_error)
    bench = bench_of(tmp_path, step)

    (outcome,) = bench.run()

    assert output(bench.broker, "f") == [-v for v in range(20) if v not in (0, 7, 19)]
    assert happened(bench.broker) == []
    assert outcome.skipped["f"] == 3
    if on_error == "dead_letter":
        letters = dead(bench.broker, "f")
        assert [letter["offset"] for letter in letters] == [0, 7, 19]
        assert [letter["row"] for letter in letters] == [{"x": 0}, {"x": 7}, {"x": 19}]
        assert [letter["row_json"] for letter in letters] == ['{"x": 0}', '{"x": 7}', '{"x": 19}']
        assert letters[1]["error"] == "ValueError: poison 7"
        assert "in _check" in letters[1]["traceback"]
        assert letters[1]["journal"] == "jobs/j/src/out/0"
    if expensive:
        found = totals(bench.broker, "f")
        assert found.skipped == 3
        assert found.dead_letters == (3 if on_error == "dead_letter" else 0)


@pytest.mark.parametrize("expensive", [True, False])
def test_the_poison_rows_of_a_batch_are_found_by_halving_it(
    tmp_path: Path, *, expensive: bool
) -> None:
    poison = Poison(5, 6)
    step = map_step(
        "f",
        poison.batch,
        rows="batch",
        expensive=expensive,
        batch_rows=8,
        retries=1,
        on_error="dead_letter",
    )
    bench = bench_of(tmp_path, step)

    bench.run()

    assert output(bench.broker, "f") == [-v for v in range(20) if v not in (5, 6)]
    assert [letter["offset"] for letter in dead(bench.broker, "f")] == [5, 6]
    whole, halves = list(range(8)), poison.batches[2:]
    assert poison.batches[:2] == [whole, whole]
    assert halves[:7] == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7], [6]]
    if expensive:
        assert totals(bench.broker, "f").calls == len(poison.batches)


def test_a_batch_that_raises_fails_the_step_where_it_begins(tmp_path: Path) -> None:
    poison = Poison(5)
    step = map_step("f", poison.batch, rows="batch", expensive=True, batch_rows=4, retries=0)
    bench = bench_of(tmp_path, step)

    bench.run()

    assert output(bench.broker, "f") == [0, -1, -2, -3]
    assert happened(bench.broker)[0].detail["offset"] == 4
    assert totals(bench.broker, "f").in_doubt == 0


@pytest.mark.parametrize("expensive", [True, False])
def test_a_result_that_does_not_fit_names_the_column_and_is_not_asked_for_again(
    tmp_path: Path, *, expensive: bool
) -> None:
    called: list[int] = []

    def wrong(row: Row) -> Row:
        called.append(row["x"])
        return {"x": "seven" if row["x"] == 7 else row["x"]}

    step = map_step("f", wrong, expensive=expensive, retries=3)
    bench = bench_of(tmp_path, step)

    bench.run()

    (event,) = happened(bench.broker)
    assert "column 'x'" in event.detail["error"]
    assert "int64" in event.detail["error"]
    assert event.detail["offset"] == 7
    assert output(bench.broker, "f") == list(range(7))
    assert called.count(7) == 1


def test_a_null_where_none_may_be_is_refused_before_the_next_call(tmp_path: Path) -> None:
    certain = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    called: list[int] = []

    def sometimes(row: Row) -> Row:
        called.append(row["x"])
        return {"x": None if row["x"] == 2 else row["x"]}

    bench = bench_of(tmp_path, map_step("f", sometimes, schema=certain, expensive=True))

    bench.run()

    assert called == [0, 1, 2]
    assert "no value for column 'x'" in happened(bench.broker)[0].detail["error"]


@pytest.mark.parametrize("expensive", [True, False])
@pytest.mark.parametrize("kind", ["row", "timed", "async", "async task", "batch"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_error_that_would_end_the_process_is_a_failed_call_of_its_row(
    tmp_path: Path, error: type[BaseException], kind: str, *, expensive: bool
) -> None:
    called: list[int] = []

    def leave(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] == 3:
            raise error("leaving")
        return row

    async def wait(row: Row) -> Row:
        return leave(row)

    async def wait_for_task(row: Row) -> Row:
        return await asyncio.create_task(wait(row))

    def leave_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        for row in batch.to_pylist():
            leave(row)
        return batch

    function = {"batch": leave_batch, "async": wait, "async task": wait_for_task}.get(kind, leave)
    step = map_step(
        "f",
        function,
        rows="batch" if kind == "batch" else "row",
        is_async=kind.startswith("async"),
        expensive=expensive,
        on_error="dead_letter",
        batch_rows=2,
        retries=1,
        timeout=60 if kind == "timed" else None,
    )
    bench = bench_of(tmp_path, step)

    bench.run()

    rows = sorted(set(called))
    assert output(bench.broker, "f") == [x for x in rows if x != 3]
    (letter,) = dead(bench.broker, "f")
    assert letter["row"] == {"x": 3}
    assert letter["error"].startswith(f"{error.__name__}")
    if kind != "batch":
        assert [x for x in called if x != 3] == sorted(x for x in rows if x != 3)
        assert called.count(3) == 2


def test_a_class_that_cannot_be_made_fails_the_step_and_nothing_is_in_doubt(
    tmp_path: Path,
) -> None:
    class Model:
        def __init__(self) -> None:
            raise OSError("no such model")

        def __call__(self, row: Row) -> Row:
            return row

    bench = bench_of(tmp_path, map_step("f", Model, makes=True, expensive=True))

    bench.run()

    (event,) = happened(bench.broker)
    assert event.detail["error"] == "OSError: no such model"
    assert totals(bench.broker, "f").calls == 0


def test_a_filter_that_fails_in_front_of_an_expensive_step_is_an_event(tmp_path: Path) -> None:
    called: list[int] = []

    def pay(row: Row) -> Row:
        called.append(row["x"])
        return row

    step = map_step("f", pay, expensive=True, batch_rows=2)
    bench = Bench(tmp_path, [hop(filter_step("1 / (x - 5) > -9"), step)])
    fill(bench.broker, range(10))

    bench.run()

    (event,) = happened(bench.broker)
    assert (event.happened, event.step) == (JobEventKind.FAILED, "filter")
    assert "a value cannot be calculated with: division by zero" in event.detail["error"]
    assert called == []


def test_errors_that_are_not_to_be_tried_again_are_not_and_the_paid_answer_is_kept(
    tmp_path: Path,
) -> None:
    called: list[int] = []

    def pay(row: Row) -> Row:
        called.append(row["x"])
        raise AnswerUnusable("no JSON", answer="I am sorry")

    step = map_step(
        "f", pay, expensive=True, retries=5, on_error="dead_letter", give_up_on=[AnswerUnusable]
    )
    bench = bench_of(tmp_path, step, rows=2)

    bench.run()

    assert called == [0, 1]
    letters = dead(bench.broker, "f")
    assert letters[0]["error"] == "AnswerUnusable: no JSON\n  answer: I am sorry"


class Unsure:
    """Answers with a text that is no number for odd rows, and counts what was paid."""

    def __init__(self) -> None:
        self.called: list[int] = []

    def answer(self, row: Row) -> Row:
        self.called.append(row["x"])
        if row["x"] % 2:
            raise AnswerUnusable("no number", answer=f"about {row['x']}")
        return row

    async def answer_async(self, row: Row) -> Row:
        return self.answer(row)


def number_of(row: Row, error: AnswerUnusable) -> Row:
    word, number = str(error.answer).split()
    if number == "3":
        raise ValueError(word)
    assert row["x"] == int(number)
    return {"x": 100 + int(number)}


async def number_of_async(row: Row, error: AnswerUnusable) -> Row:
    await asyncio.sleep(0)
    return number_of(row, error)


@pytest.mark.parametrize("repair", [number_of, number_of_async])
def test_an_answer_that_was_paid_for_is_repaired_and_not_paid_for_again(
    tmp_path: Path, repair: Callable[..., Any]
) -> None:
    unsure, is_async = Unsure(), repair is number_of_async
    step = map_step(
        "f",
        unsure.answer_async if is_async else unsure.answer,
        is_async=is_async,
        expensive=True,
        retries=5,
        on_error="dead_letter",
        give_up_on=[AnswerUnusable],
    )
    step = replace(step, calling=replace(step.calling, repair=repair))
    bench = bench_of(tmp_path, step, rows=6)

    bench.run()

    assert output(bench.broker, "f") == [0, 101, 2, 4, 105]
    assert unsure.called == list(range(6))
    (letter,) = dead(bench.broker, "f")
    assert letter["error"].startswith("AnswerUnusable: no number")
    assert "repair= raised ValueError: about" in letter["error"]
    assert letter["error"].endswith("answer: about 3")
    assert totals(bench.broker, "f").calls == 6


# Functions that hang.


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Ends the calls that a test left hanging."""
    event = threading.Event()
    yield event
    event.set()
    until = time.monotonic() + 30
    while call_thread.stuck_calls() and time.monotonic() < until:
        time.sleep(0.001)
    assert not call_thread.stuck_calls()


def test_a_call_that_hangs_is_left_behind_and_made_again(
    tmp_path: Path, let_go: threading.Event
) -> None:
    called: list[int] = []

    def hang_once(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] == 2 and called.count(2) == 1:
            let_go.wait()
        return row

    step = map_step("f", hang_once, expensive=True, timeout=2.0, retries=1)
    bench = bench_of(tmp_path, step, rows=5)

    (outcome,) = bench.run()

    assert output(bench.broker, "f") == [0, 1, 2, 3, 4]
    assert (outcome.ended, called.count(2)) == ("stopped", 2)
    assert totals(bench.broker, "f").errors == 1


def test_a_worker_whose_calls_hang_too_often_ends_and_says_so(
    tmp_path: Path, let_go: threading.Event
) -> None:
    def hang(row: Row) -> Row:
        if row["x"] == 2:
            let_go.wait()
        return row

    step = map_step("f", hang, expensive=True, timeout=1.0, retries=9, on_error="dead_letter")
    bench = bench_of(tmp_path, step, rows=5)

    (outcome,) = bench.run()

    assert outcome.ended == "stuck"
    assert [event.happened for event in happened(bench.broker)] == [JobEventKind.STUCK]
    assert output(bench.broker, "f") == [0, 1]
    (letter,) = dead(bench.broker, "f")
    assert "did not return within 1 s" in letter["error"]
    assert bench.broker.committed("jobs/j/f", "jobs/j/src/out/0") == 3
    assert bench.worker("next").run().ended == "stuck"
    assert totals(bench.broker, "f").calls == 4

    let_go.set()
    while call_thread.stuck_calls():
        time.sleep(0.001)
    bench.again().run()
    assert output(bench.broker, "f") == [0, 1, 3, 4]


def test_a_function_that_breaks_its_promise_of_one_row_in_front_of_calls_fails_by_name(
    tmp_path: Path,
) -> None:
    def promised(row: Row) -> Row:
        return [row, row] if row["x"] == 7 else row  # type: ignore[return-value]

    paid: list[int] = []

    def pay(row: Row) -> Row:
        paid.append(row["x"])
        return row

    front = map_step("promised", promised, on_error="skip")
    bench = Bench(tmp_path, [hop(front, map_step("pay", pay, expensive=True))])
    fill(bench.broker, range(20))

    bench.run()

    (failed,) = [e for e in happened(bench.broker) if e.happened is JobEventKind.FAILED]
    assert (failed.step, failed.detail["offset"]) == ("promised", 7)
    assert "returned several rows for one row" in failed.detail["error"]
    assert output(bench.broker, "pay") == paid == list(range(7))


class Dead(MillraceError):
    """The process is gone."""


class Dying(MemoryBroker):
    """A broker that a dying process does not reach any more."""

    is_dying = False

    def publish(self, request: Publish) -> Published:
        if self.is_dying:
            raise Dead("gone")
        return super().publish(request)


def test_a_function_that_fails_over_a_dead_workers_rows_leaves_its_paid_results_for_the_next_run(
    tmp_path: Path,
) -> None:
    broker, fails, paid = Dying(), iter([False, True]), list[int]()

    def front(row: Row) -> Row:
        if row["x"] == 1 and next(fails, False):
            raise ValueError("not now")
        return row

    def pay(row: Row) -> Row:
        paid.append(row["x"])
        broker.is_dying = row["x"] < 2 and len(paid) <= 2
        return {"x": -row["x"]}

    steps = (map_step("front", front, retries=0), map_step("pay", pay, expensive=True))
    bench = Bench(tmp_path, [hop(*steps)], broker=broker)
    fill(broker, range(5))
    with pytest.raises(Dead):
        bench.run()
    broker.is_dying = False

    again = bench.again()
    again.run()
    (failed,) = [event for event in happened(broker) if event.happened is JobEventKind.FAILED]
    assert (failed.step, failed.detail["offset"]) == ("front", 1)
    assert output(broker, "pay") == []

    again.again().run()
    assert output(broker, "pay") == [0, -1, -2, -3, -4]
    assert paid == [0, 1, 2, 3, 4], "no call is made again"


@pytest.mark.parametrize("expensive", [True, False])
@pytest.mark.parametrize("kind", ["row", "batch", "async"])
def test_an_error_that_no_call_can_pass_ends_the_step_whatever_on_error_says(
    tmp_path: Path, kind: str, *, expensive: bool
) -> None:
    asked = []

    def pay(row: Row) -> Row:
        asked.append(row["x"])
        if row["x"] >= 10:
            raise NotAllowed("no credit left")
        return {"x": -row["x"]}

    async def pay_later(row: Row) -> Row:
        return pay(row)

    def pay_for_all(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([pay(row) for row in batch.to_pylist()], batch.schema)

    options: dict[str, Any] = {"expensive": expensive, "on_error": "dead_letter", "retries": 5}
    options["batch_rows"] = 5
    if kind == "batch":
        step = map_step("f", pay_for_all, rows="batch", **options)
    else:
        is_async = kind == "async"
        step = map_step("f", pay_later if is_async else pay, is_async=is_async, **options)
    bench = bench_of(tmp_path, step)

    (outcome,) = bench.run()

    assert outcome.ended == "failed"
    assert sorted(output(bench.broker, "f")) == list(range(-9, 1))
    assert [x for x in asked if x >= 10] == [10]
    assert dead(bench.broker, "f") == []
