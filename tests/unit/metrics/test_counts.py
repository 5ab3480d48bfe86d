"""Counts of a process: none is lost between threads, and a fork begins anew."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.metrics import counts
from millrace.metrics.counts import MetricTally, MetricTimes, counted
from millrace.metrics.metric import MetricSample, counter, gauge, histogram

THREADS, EACH = 8, 2_000


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(counts, "_all", [])
        yield


def test_no_count_is_lost_between_threads() -> None:
    rows = MetricTally(counter("rows_total", "Rows.", "step"))
    times = MetricTimes(histogram("took_seconds", "Times.", (1.0,)))

    def work(number: int) -> None:
        for _ in range(EACH):
            rows.add(2, "ab"[number % 2])
            times.note(number % 2 * 2)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))

    half = THREADS // 2 * EACH
    assert sorted(counted("p"), key=str) == sorted(
        [
            MetricSample("millrace_rows_total", ("a", "p"), 2 * half),
            MetricSample("millrace_rows_total", ("b", "p"), 2 * half),
            MetricSample("millrace_took_seconds", ("p",), 2 * half, (half, half)),
        ],
        key=str,
    )


def test_what_goes_on_counts_so_far_and_once() -> None:
    busy = MetricTally(counter("busy_seconds_total", "Busy."))
    now = MetricTally(gauge("calls", "Calls."))
    with busy.seconds(), now.one_more():
        first, one = (sample.value for sample in counted("p"))
        time.sleep(0.01)
        second = counted("p")[0].value
    last, none = (sample.value for sample in counted("p"))

    assert 0 <= first < second <= last
    assert (one, none) == (1, 0)
    assert counted("p")[0].value == last


def test_what_raises_is_timed_too() -> None:
    times = MetricTimes(histogram("took_seconds", "Times.", (1.0,)))

    with pytest.raises(ZeroDivisionError), times.timed():
        raise ZeroDivisionError

    assert counted("p")[0].counts == (1, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_begins_with_no_counts() -> None:
    rows = MetricTally(counter("rows_total", "Rows."))
    rows.add(7)
    rows._lock.acquire()  # As another thread of the parent may have.
    child = os.fork()
    if child == 0:
        rows.add(1)
        values = [sample.value for sample in counted("p")]
        os._exit(0 if values == [1] else 1)
    rows._lock.release()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert counted("p")[0].value == 7
