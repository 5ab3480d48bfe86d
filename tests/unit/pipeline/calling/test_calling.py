"""Calls for one batch: what is settled, what is left out, and what is told of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import NUMBERS, QUICK, hop, map_step

from millrace.pipeline.calling import call_thread
from millrace.pipeline.calling.call_failures import failure_of
from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.call_thread import CallThread, CallTimedOut
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import BatchOutcome
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_model import Map
from millrace.pipeline.paid.call_errors import AnswerUnusable

Row = dict[str, Any]


def test_an_error_with_half_of_a_surrogate_pair_can_be_kept() -> None:
    odd = b"caf\xe9".decode(errors="surrogateescape")

    failure = failure_of(0, AnswerUnusable(f"no file {odd}", answer=odd), 1)

    assert failure.error == r"AnswerUnusable: no file caf\udce9"
    assert failure.answer == r"caf\udce9"
    assert failure.traceback.encode()


class Told:
    """Takes down how long it is to wait."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)


def some(count: int, first_offset: int = 100) -> HopRows:
    batch = pa.record_batch({"x": pa.array(range(count), pa.int64())})
    return HopRows(batch, np.arange(first_offset, first_offset + count))


def called(step: Map, rows: HopRows, told: Told | None = None) -> BatchOutcome:
    caller = FunctionCaller.of(
        hop(step), step, QUICK.with_options(job_retry_wait=0.1), workspace="/nowhere", job_id="one"
    )
    try:
        return call_for(caller, rows, 1, told or Told())
    finally:
        caller.close()


def raising(*bad: int) -> Any:  # noqa: ANN401 - a function
    def function(row: Row) -> Row:
        if row["x"] in bad:
            raise ValueError(f"bad {row['x']}")
        return row

    return function


@pytest.mark.parametrize("expensive", [True, False])
def test_rows_are_settled_up_to_the_first_that_fails(*, expensive: bool) -> None:
    found = called(map_step("f", raising(3, 5), expensive=expensive, retries=0), some(8))

    assert found.done == 3
    assert found.failed is not None
    assert (found.failed.place, found.failed.error) == (3, "ValueError: bad 3")
    assert found.out.offsets.tolist() == [100, 101, 102]


def test_a_row_that_makes_many_gives_all_of_them_its_offset() -> None:
    found = called(map_step("f", lambda row: [row] * row["x"]), some(4))

    assert found.out.offsets.tolist() == [101, 102, 102, 103, 103, 103]


def test_waits_between_attempts_double() -> None:
    told = Told()
    found = called(map_step("f", raising(0), expensive=True, retries=4), some(1), told)

    assert told.slept == [0.1, 0.2, 0.4, 0.8]
    assert found.failed is not None
    assert found.failed.attempts == 5
    assert (found.calls, found.errors) == (5, 5)


def test_half_made_rows_of_a_generator_that_raises_are_dropped() -> None:
    def makes(row: Row) -> Any:  # noqa: ANN401 - a generator
        yield row
        if row["x"] == 1:
            raise ValueError("half-way")
        yield row

    found = called(map_step("f", makes, retries=1, on_error="skip"), some(3))

    assert found.out.batch["x"].to_pylist() == [0, 0, 2, 2]
    assert [failure.place for failure in found.left_out] == [1]


def test_a_misfit_among_rows_that_were_called_quickly_is_found() -> None:
    def odd(row: Row) -> Row:
        return {"x": "odd"} if row["x"] % 2 else row

    left = called(map_step("f", odd, on_error="skip"), some(6))
    failed = called(map_step("f", odd), some(6))

    assert left.out.batch["x"].to_pylist() == [0, 2, 4]
    assert [failure.place for failure in left.left_out] == [1, 3, 5]
    assert (failed.done, failed.out.batch["x"].to_pylist()) == (1, [0])


def test_a_batch_function_may_give_nothing_at_all() -> None:
    step = map_step("f", lambda _: None, rows="batch")
    found = called(step, some(5))

    assert (found.done, len(found.out), found.out.batch.schema) == (5, 0, NUMBERS)


# Threads of their own.


def test_a_call_in_a_thread_gives_its_result_or_what_it_raised() -> None:
    own = CallThread()

    assert own.call(threading.get_ident, 60) != threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        own.call(_interrupt, 60)
    assert own.call(lambda: 7, 60) == 7
    own.close()


def test_a_call_that_takes_too_long_is_counted_until_it_returns() -> None:
    own, ends = CallThread(), threading.Event()

    with pytest.raises(CallTimedOut, match="within 0.01 s"):
        own.call(lambda: ends.wait(60), 0.01)
    assert call_thread.stuck_calls() == 1
    assert own.call(lambda: 7, 60) == 7
    ends.set()
    while call_thread.stuck_calls():
        time.sleep(0.001)
    own.close()


def _interrupt() -> None:
    raise KeyboardInterrupt
