"""Workers of a step without limits: one that meets a busy provider tells the others."""

from __future__ import annotations

import contextlib
import time

from millrace.config import Config
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.call_outcomes import CallOutcome, Failure
from millrace.pipeline.worker.sliding.call_pace import CallPace

JOURNAL = "jobs/j/ask/pace"
BUSY = Failure(place=0, error="busy", traceback="")


def refused(wait_s: float) -> CallOutcome:
    return CallOutcome(first=0, attempt=1, at_us=0, seconds=0.0, failure=BUSY, refused_s=wait_s)


def test_a_refusal_of_one_worker_holds_the_calls_of_all() -> None:
    broker = MemoryBroker()
    with contextlib.ExitStack() as stack:
        first, second = (CallPace(broker, Config(), JOURNAL, None) for _ in range(2))
        stack.callback(first.close)
        stack.callback(second.close)
        assert first.wait_s() == second.wait_s() == 0.0
        assert broker.list(JOURNAL) == (), "nothing is written before there is something to say"

        for _ in range(5):
            first.on_called(refused(60.0))

        assert first.wait_s() > 0
        until = time.monotonic() + 20
        while second.wait_s() == 0 and time.monotonic() < until:
            time.sleep(0.05)
        assert second.wait_s() > 0
