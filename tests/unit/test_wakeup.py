"""How threads sleep, are woken, are told to stop and are waited for."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from millrace.errors import Retriable
from millrace.wakeup import WakeUp, WorkerThread, is_current, is_main, join, still_running, within

LONG_S = 60.0


def test_a_ring_ends_the_sleep_that_is_under_way() -> None:
    wake = WakeUp()
    sleeper = WorkerThread(lambda: wake.sleep(LONG_S), "sleeper")
    sleeper.start()
    wake.ring()
    assert sleeper.ended.wait(LONG_S)


def test_a_ring_that_comes_before_the_sleep_ends_the_next_one_and_no_other() -> None:
    wake = WakeUp()
    wake.ring()
    wake.ring()
    assert wake.sleep(LONG_S)
    begun = time.monotonic()
    assert wake.sleep(0.01)
    assert time.monotonic() - begun >= 0.01


def test_a_stop_ends_every_sleep_also_after_a_ring_and_between_test_and_sleep() -> None:
    wake = WakeUp()
    # A thread has tested, and comes to sleep:
    wake.stop()
    wake.ring()
    assert wake.is_stopped
    assert [wake.sleep(LONG_S) for _ in range(3)] == [False, False, False]


def test_who_stops_one_stops_those_that_wait_on_its_behalf() -> None:
    stop, first, second, later = WakeUp(), WakeUp(), WakeUp(), WakeUp()
    with stop.stops(first):
        pass
    with stop.stops(second):
        stop.stop()
        assert not second.sleep(LONG_S)
    with stop.stops(later):
        assert not later.sleep(LONG_S)
    assert not first.is_stopped


SIGNALLED = """
import signal, sys, threading, time
from millrace.wakeup import WakeUp
wake = WakeUp() if sys.argv[1] == "WakeUp" else threading.Event()
ring = wake.ring if sys.argv[1] == "WakeUp" else wake.set
sleep = wake.sleep if sys.argv[1] == "WakeUp" else wake.wait
signal.signal(signal.SIGALRM, lambda *_: ring())
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
until = time.monotonic() + 1
while time.monotonic() < until:
    sleep(0.00001)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_may_ring_and_stop_what_the_main_thread_sleeps_on() -> None:
    """An `Event` hangs here: the handler waits for a lock that the thread below it holds."""
    subprocess.run([sys.executable, "-c", SIGNALLED, "WakeUp"], check=True, timeout=LONG_S)
    wake = WakeUp()
    before = signal.signal(signal.SIGUSR1, lambda *_: wake.stop())
    try:
        with wake._changed:
            signal.raise_signal(signal.SIGUSR1)
        assert not wake.sleep(LONG_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_thread_that_does_not_end_is_named_with_where_it_stands_and_the_limit() -> None:
    wake = WakeUp()

    def stand_still() -> None:
        wake.sleep(LONG_S)

    worker = WorkerThread(stand_still, "slice-7")
    worker.start()
    with pytest.raises(Retriable) as caught:
        join([worker], 20, "thread_stop_ms_max")
    text = str(caught.value)
    assert "thread slice-7 did not end in 20 ms\n  limit: thread_stop_ms_max\n  found:" in text
    assert "stand_still" in text
    assert "\n  to fix: " in text
    wake.stop()
    join([worker], 60_000, "thread_stop_ms_max")
    assert still_running([worker], 0) == []


def test_threads_that_were_not_started_and_the_own_one_are_not_waited_for() -> None:
    found: list[list[WorkerThread]] = []

    def wait_for_itself() -> None:
        found.append(still_running([worker, WorkerThread(print, "never")], 60_000))

    worker = WorkerThread(wait_for_itself, "own")
    worker.start()
    join([worker], 60_000, "thread_stop_ms_max")
    assert found == [[]]


def test_work_that_hangs_is_left_behind_and_work_that_fails_says_so() -> None:
    wake = WakeUp()
    assert not within(lambda: wake.sleep(LONG_S), 10, "hangs")
    assert within(wake.stop, 60_000, "ends")
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0, 60_000, "fails")


def test_threads_of_a_library_leave_no_entry_in_pythons_list_of_threads() -> None:
    import _thread

    worker = WorkerThread(lambda: None, "worker")
    worker.start()
    over, entries = WakeUp(), []

    def in_a_foreign_thread() -> None:
        assert still_running([worker], 60_000) == []
        assert within(lambda: None, 60_000, "inner")
        assert not is_current(worker)
        assert not is_main()
        entries.append([each.name for each in threading.enumerate() if "Dummy" in each.name])
        over.stop()

    before = [each.name for each in threading.enumerate() if "Dummy" in each.name]
    _thread.start_new_thread(in_a_foreign_thread, ())
    assert not over.sleep(LONG_S)
    assert entries == [before]
