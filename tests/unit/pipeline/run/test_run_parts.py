"""Parts of running a job that need no Spark: who works on what, the run's lease, dealing rows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.played_kit import JOB, Played

from millrace.config import Config
from millrace.durations import seconds
from millrace.errors import LeaseHeld, LeaseLost, OwnerUnreachable, TaskFailed, UserError
from millrace.journal.core.values import Lease
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import Calling, Map, SavedSource, StepOptions
from millrace.pipeline.report.job_counts import Counting
from millrace.pipeline.run import lease_holders
from millrace.pipeline.run.interrupts import Interrupts
from millrace.pipeline.run.run_lease import RunLease, refuse_running
from millrace.pipeline.run.run_start import Begun
from millrace.pipeline.run.run_watch import RunWatch
from millrace.pipeline.run.step_failures import step_failed
from millrace.pipeline.run.worker_orders import WorkerGroup, shippable, waves, worker_groups
from millrace.spark.frames.source_intake_task import RowsDigest, digest_of
from millrace.spark.shipping.function_shipping import check_job_shippable

ROWS = pa.schema([("n", pa.int64())])
CONFIG = Config(job_run_lease=0.3)


def hop(name: str, *, function: Any = len, given: object = None, **options: Any) -> Hop:  # noqa: ANN401
    calling = Calling(function=function, name=name, rows="row")
    source = SavedSource(name="source", schema=ROWS, partitions=1, given=given)
    step = Map(
        name=name, schema=ROWS, inputs=(source,), calling=calling, options=StepOptions(**options)
    )
    return Hop(
        job="j",
        name=name,
        inputs=("jobs/j/source/out",),
        schema=ROWS,
        steps=(step,),
        sink=None,
        output=ROWS,
        partitions=1,
        depth=1,
        feeds=(),
    )


def test_all_steps_share_workers_where_none_asks_for_resources() -> None:
    steps = [hop("a"), hop("b")]

    assert worker_groups(steps, {"a": 3, "b": 2}, 16) == [WorkerGroup(None, (), 5)]
    assert worker_groups(steps, {"a": 3, "b": 2}, 4) == [WorkerGroup(None, (), 4)]
    assert worker_groups(steps, {"a": 0, "b": 0}, 4) == [WorkerGroup(None, (), 1)]


def test_a_step_with_resources_has_workers_of_its_own() -> None:
    steps = [
        hop("a"),
        hop("b", resources={"gpu": 1.0}, workers=2),
        hop("c", resources={"gpu": 1.0}),
    ]

    posts = worker_groups(steps, {"a": 3, "b": 8, "c": 1}, 16)

    assert posts == [WorkerGroup(("a",), (), 3), WorkerGroup(("b", "c"), (("gpu", 1.0),), 3)]


def test_workers_are_spread_over_few_spark_jobs() -> None:
    assert waves(1, 8) == [1]
    assert waves(8, 8) == [1] * 8
    assert waves(19, 8) == [3, 3, 3, 2, 2, 2, 2, 2]


def test_what_feeds_a_step_stays_in_the_driver() -> None:
    lock = threading.Lock()

    sent = shippable(hop("a", given=lock))

    assert sent.steps[0].inputs == ()
    assert sent.callings[0].function is len


def test_a_function_that_cannot_be_sent_is_refused_before_anything_runs() -> None:
    lock = threading.Lock()

    with pytest.raises(UserError, match="a in 'a' cannot be sent to tasks(.|\n)*give a class"):
        check_job_shippable([hop("a", function=lambda row: (lock, row))])
    check_job_shippable([hop("b")])


def test_what_tells_rows_does_not_depend_on_their_order_and_counts_copies() -> None:
    random = np.random.default_rng(1)
    first, second = (random.integers(-(2**63), 2**63 - 1, 1000, np.int64) for _ in range(2))

    def of(order: np.ndarray[Any, np.dtype[np.int64]]) -> RowsDigest:
        return digest_of(pa.array(first[order]), pa.array(second[order]))

    straight, mixed = np.arange(1000), random.permutation(1000)
    assert of(straight) == of(mixed) == of(mixed[:300]).plus(of(mixed[300:]))
    assert of(straight[:-1]) != of(straight)
    assert of(np.append(straight[:-1], 0)) != of(straight)
    assert of(straight[:0]) == RowsDigest()
    assert -(2**63) <= of(straight).first < 2**63


def test_a_lease_is_renewed_as_long_as_the_run_lasts() -> None:
    broker = MemoryBroker()
    lease = RunLease(broker, "j", CONFIG, threading.Event())
    (before,) = broker.leases()

    until = time.monotonic() + 20
    while broker.leases()[0].expires_at_ms <= before.expires_at_ms:
        assert time.monotonic() < until
        time.sleep(0.01)

    lease.release()
    assert broker.leases() == ()
    assert RunLease(broker, "j", CONFIG, threading.Event()).run == lease.run + 1


def test_a_lease_that_is_renewed_by_others_is_theirs() -> None:
    broker = MemoryBroker()
    first = RunLease(broker, "j", CONFIG, threading.Event())

    with pytest.raises(LeaseHeld, match=f"being run already\n  run by: .*process {os.getpid()}"):
        RunLease(broker, "j", CONFIG, threading.Event())
    first.release()


def test_a_lease_that_nobody_renews_is_waited_for() -> None:
    broker = MemoryBroker()
    broker.acquire(hops.run_lease("j"), "dead", lease_ms=300)

    taken = RunLease(broker, "j", CONFIG, threading.Event())

    assert taken.run == 2
    taken.release()


def test_a_run_waits_for_the_end_of_a_removal(capfd: pytest.CaptureFixture[str]) -> None:
    broker, stop = MemoryBroker(), threading.Event()
    removal = RunLease(broker, "j", CONFIG, stop, doing=lease_holders.REMOVAL)
    refuse_running(broker, "j")
    ended = threading.Timer(0.3, removal.release)
    ended.start()

    taken = RunLease(broker, "j", CONFIG, stop)

    assert taken.run == 2
    taken.release()
    ended.join()
    assert "is held by removal of large values by" in capfd.readouterr().err


class Impatient(threading.Event):
    """Nobody is to wait for it."""

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError(f"waited for {timeout} s")


def held_by(process: subprocess.Popen[bytes]) -> str:
    host = socket.gethostname()
    return f"ann on {host} (process {process.pid}) since 2026-01-02 03:04:05 UTC, 12ab"


def test_a_second_process_hears_at_once_who_runs_the_job_and_since_when() -> None:
    broker, stop = MemoryBroker(), Impatient()
    with subprocess.Popen(["sleep", "60"]) as process:
        broker.acquire(hops.run_lease("j"), held_by(process), lease_ms=3_600_000)

        with pytest.raises(LeaseHeld) as held:
            RunLease(broker, "j", CONFIG, stop)
        with pytest.raises(LeaseHeld, match="being run already"):
            refuse_running(broker, "j")
        process.kill()

    assert f"ann on {socket.gethostname()} (process {process.pid})" in str(held.value)
    assert "since 2026-01-02 03:04:05 UTC" in str(held.value)


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_the_lease_of_a_dead_process_is_waited_for_and_that_is_said(
    capfd: pytest.CaptureFixture[str], *, is_waited_for: bool
) -> None:
    broker = MemoryBroker()
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    if is_waited_for:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # It stays a zombie.
    broker.acquire(hops.run_lease("j"), held_by(process), lease_ms=300)

    refuse_running(broker, "j")
    taken = RunLease(broker, "j", CONFIG, threading.Event())

    assert taken.run == 2
    taken.release()
    process.wait()
    said = capfd.readouterr().err
    assert f"job 'j' is held by {held_by(process)}; that process is gone" in said
    limit_s = 2 * seconds(CONFIG.job_run_lease, "lease")
    assert f"at most {limit_s:g} s (twice job_run_lease)" in said


def test_a_process_that_gave_its_run_up_is_no_obstacle_to_itself() -> None:
    broker = MemoryBroker()
    RunLease(broker, "j", CONFIG, threading.Event()).let_go()

    taken = RunLease(broker, "j", CONFIG, threading.Event())

    assert taken.run == 2
    taken.release()


def wait_for_loss(lease: RunLease) -> None:
    until = time.monotonic() + 20
    while lease.lost is None:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_run_whose_lease_is_taken_away_learns_it() -> None:
    broker = MemoryBroker()
    lease = RunLease(broker, "j", CONFIG, threading.Event())

    broker.fence(hops.run_lease("j"))

    wait_for_loss(lease)
    with pytest.raises(LeaseLost, match="run 1 was ended by somebody else"):
        lease.check()


class Unreachable(MemoryBroker):
    def renew(self, lease: Lease, *, lease_ms: int | None = None) -> Lease:  # noqa: ARG002
        raise OwnerUnreachable("nobody answers")


def test_a_run_whose_broker_is_gone_learns_it_when_the_lease_has_run_out() -> None:
    lease = RunLease(Unreachable(), "j", CONFIG, threading.Event())

    wait_for_loss(lease)

    with pytest.raises(OwnerUnreachable, match="nobody answers"):
        lease.check()


def watched(broker: MemoryBroker, config: Config) -> tuple[Played, RunWatch]:
    played = Played.started(broker)
    lease = RunLease(broker, JOB, config, threading.Event())
    counting = Counting(broker, played.record)
    begun = Begun(
        record=played.record, before=counting.count(), ends={}, job_id="one", events_from=0
    )
    return played, RunWatch(config, counting, played.history, lease, begun, ())


def look_until_it_raises(watch: RunWatch) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        counted, _ = watch.count()
        watch.check_somebody_works(counted)
        time.sleep(0.005)


def test_a_run_gives_up_when_rows_wait_and_nobody_works() -> None:
    _, watch = watched(MemoryBroker(), replace(CONFIG, job_nobody_ms_max=50))

    with pytest.raises(TaskFailed, match="10 rows wait and nobody works on them"):
        look_until_it_raises(watch)
    watch.lease.release()


def test_a_run_waits_for_somebody_who_is_long_in_a_call() -> None:
    broker = MemoryBroker()
    _, watch = watched(broker, replace(CONFIG, job_nobody_ms_max=50))
    call = broker.acquire(hops.unit_lease(JOB, "caption", 1), "worker", lease_ms=60_000)
    long_after = time.monotonic() + 0.2
    while time.monotonic() < long_after:
        watch.check_somebody_works(watch.count()[0])
    broker.release(call)

    with pytest.raises(TaskFailed, match="nobody works on them"):
        look_until_it_raises(watch)
    watch.lease.release()


def test_where_a_budget_is_used_up_only_what_lies_behind_it_is_waited_for() -> None:
    broker = MemoryBroker()
    played, watch = watched(broker, CONFIG)
    played.do("caption", "videos", 0, 3)
    assert not watch.is_done(watch.count()[0])
    played.tell(JobEventKind.SPENT, watch.lease.run, "caption")
    assert watch.look() is None
    assert watch.spent == {"caption"}

    assert not watch.is_done(watch.count()[0]), "by_user has rows of it"
    played.do("by_user", "caption", 0, 3)
    played.do("out", "by_user", 0, 3, out=False)
    assert watch.is_done(watch.count()[0]), "what the budget is for may wait"
    held = broker.acquire(hops.unit_lease(JOB, "caption", 1), "worker")
    assert not watch.is_done(watch.count()[0]), "somebody is still in a call"
    broker.release(held)
    watch.lease.release()


def test_events_of_other_runs_end_nothing() -> None:
    played, watch = watched(MemoryBroker(), CONFIG)
    played.tell(JobEventKind.FAILED, watch.lease.run + 7, "caption", error="not ours")
    assert watch.look() is None

    played.tell(JobEventKind.HELD, watch.lease.run, "caption")

    found = watch.look()
    assert found is not None
    assert found.happened is JobEventKind.HELD
    watch.lease.release()


def test_the_first_signal_asks_and_the_second_forces() -> None:
    asked: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    with Interrupts(lambda: asked.append("stop"), "stopping") as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert (asked, interrupts.is_forced) == (["stop"], False)
        signal.raise_signal(signal.SIGINT)
        assert (asked, interrupts.is_forced) == (["stop"], True)

    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt, match="was stopped"):
        interrupts.raise_again("it was stopped")


def test_sigterm_ends_with_its_own_code_and_no_signal_with_none() -> None:
    with Interrupts(lambda: None, "stopping") as interrupts:
        interrupts.raise_again("nothing happened")
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        interrupts.raise_again("")
    assert ended.value.code == 143


def test_a_failed_step_is_put_into_words() -> None:
    failed = JobEvent(
        at_us=1,
        run=1,
        happened=JobEventKind.FAILED,
        step="call",
        detail={"journal": "jobs/j/a/out/0", "offset": 7, "error": "E: no", "traceback": "Trace"},
    )

    text = str(step_failed("j", failed))

    assert text.startswith("step 'call' of job 'j' gave up\n  at: jobs/j/a/out/0, row 7\n  E: no\n")
    assert "Trace" in text
    held = str(step_failed("j", replace(failed, happened=JobEventKind.HELD)))
    assert "calls in doubt" in held
    assert "on_doubt='retry' or 'skip'" in held
