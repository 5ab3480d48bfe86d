"""Each reason why a step waits is said, from what lies in the journals alone."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.config import Config
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.paid import call_budget, call_records, pace
from millrace.pipeline.paid.call_budget import BudgetShare
from millrace.pipeline.paid.call_records import Held, Totals
from millrace.pipeline.paid.pace import PaceRow
from millrace.pipeline.run.job_status import job_status
from millrace.system.job_reading import seen_job
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.step_activity import StepActivity, activities_of, workers_of
from millrace.workspace import runtime_of

LONG_MS = 600_000
LATER_US = 2**62


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        yield Played.started(runtime_of(ws).joined_broker())


def run(played: Played, **options: Any) -> int:  # noqa: ANN401 - fields of a part
    """A run begins and goes on, with these options of the paid step."""
    lease = played.broker.acquire(hops.run_lease(JOB), "a test", lease_ms=LONG_MS)
    assert lease is not None
    parts = (replace(p, **options) if p.name == "caption" else p for p in played.record.parts)
    played.record = JobRecord(JOB, tuple(parts))
    played.start(int(lease.epoch))
    return int(lease.epoch)


def hold(played: Played, process: int) -> None:
    """A worker takes a unit of the paid step."""
    unit = played.broker.get(hops.output_journal(JOB, "videos", 0)).id
    holder = f"{socket.gethostname()}/{process}/ab"
    played.broker.acquire(hops.unit_lease(JOB, "caption", unit), holder, lease_ms=LONG_MS)


def activity(tmp_path: Path, step: str = "caption", **config: int) -> StepActivity:
    path = str(tmp_path / "mill")
    with (
        RestingWorkspace.at(path, Config().with_options(**config)) as resting,
        seen_job(resting, JOB) as job,
    ):
        status = job_status(job.journals, JOB)
        workers = workers_of(job, resting.now_ms())
        return activities_of(resting, job, status, workers)[step]


def reserve(played: Played, **total: int) -> None:
    name = hops.budget_journal(JOB, "caption")
    played.broker.create(name, call_records.BUDGET_SCHEMA)
    share = BudgetShare(at_us=1, change=Held(**total), total=Held(**total))
    played.broker.append(name, call_budget.to_rows((share,)))


def reserve_time(played: Played, **row: Any) -> None:  # noqa: ANN401 - fields of a row
    name = hops.pace_journal(JOB, "caption")
    played.broker.create(name, pace.PACE_SCHEMA)
    played.broker.append(name, pace.to_rows(PaceRow(at_us=1, calls=1, **row)))


def test_a_step_with_rows_and_no_worker_waits_for_a_slot(tmp_path: Path, played: Played) -> None:
    run(played)

    assert activity(tmp_path).why == "no worker has taken its rows: all slots are at other steps"
    assert activity(tmp_path, "by_user").why == "nothing to read yet: caption has rows to do"


@pytest.mark.parametrize(
    ("paid", "total", "why"),
    [
        ({"usd": 0.5}, {"nano_usd": 500_000_000}, "the budget of $0.50 is used up"),
        ({"tokens": 1_000}, {"tokens": 1_200}, "the budget of 1,000 tokens is used up"),
    ],
)
def test_a_budget_that_is_used_up_is_named(
    tmp_path: Path, played: Played, paid: dict[str, float], total: dict[str, int], why: str
) -> None:
    run(played, paid=paid)
    reserve(played, **{name: count - 300 for name, count in total.items()})
    assert "budget" not in activity(tmp_path).why

    reserve(played, **total)

    assert activity(tmp_path) == StepActivity("waiting", why, "warn")


def test_a_step_works_as_long_as_the_last_calls_of_its_budget_run(
    tmp_path: Path, played: Played
) -> None:
    epoch = run(played, max_calls=5)
    played.record_calls(0, Totals(calls=5))
    hold(played, os.getpid())
    assert activity(tmp_path).now == "working"

    played.tell(JobEventKind.SPENT, epoch, "caption")

    assert activity(tmp_path).why == "the budget of 5 calls is used up"


def test_limits_are_told_while_the_next_call_has_to_wait(tmp_path: Path, played: Played) -> None:
    run(played, rate=2.5, paid={"tpm": 9_000, "concurrent": 4}, workers=4)
    reserve_time(played, slot_us=1)
    assert activity(tmp_path).why == "at most 4 calls at once"

    reserve_time(played, slot_us=LATER_US, rpm=60.0, factor=0.73)
    hold(played, os.getpid())

    assert activity(tmp_path) == StepActivity(
        "working",
        "1 worker at it; limited to 2.5 calls a second and 9,000 tokens a minute; its provider "
        "allows 60 calls a minute; slowed to 73%: its provider was busy; at most 4 calls at once",
        "ok",
    )


def test_a_step_is_held_back_by_rows_that_wait_behind_it(tmp_path: Path, played: Played) -> None:
    run(played)
    played.do("caption", "videos", 0, 4)

    assert activity(tmp_path, job_backlog_rows_max=5).now == "waiting"
    held = activity(tmp_path, job_backlog_rows_max=4)

    assert held.why == "held back: 4 rows wait for by_user, the most are 4"


def test_a_sink_of_files_waits_while_more_rows_may_come(tmp_path: Path, played: Played) -> None:
    parts = (replace(p, kind="sink_parquet") if p.name == "out" else p for p in played.record.parts)
    played.record = JobRecord(JOB, tuple(parts))
    run(played)
    played.do("caption", "videos", 0, 5)
    played.do("by_user", "caption", 0, 5)
    assert activity(tmp_path, "out").why == "more rows may come: files are written large, or late"

    played.do("caption", "videos", 1, 5)
    played.do("by_user", "caption", 1, 5)

    assert activity(tmp_path, "out").why.startswith("no worker has taken its rows")


def test_the_lease_of_a_worker_that_is_gone_is_said(tmp_path: Path, played: Played) -> None:
    run(played)
    process = subprocess.Popen(["true"])
    process.wait()

    hold(played, process.pid)

    assert activity(tmp_path).why.startswith("a worker that is gone holds a lease for another ")


@pytest.mark.parametrize(
    ("happened", "why"),
    [
        (JobEventKind.WAITING, "a provider works on a batch of it"),
        (JobEventKind.HELD, "calls are in doubt: the run asks what to do with them"),
    ],
)
def test_what_the_run_itself_recorded_is_said(
    tmp_path: Path, played: Played, happened: JobEventKind, why: str
) -> None:
    epoch = run(played)
    played.tell(happened, epoch, "caption")
    assert activity(tmp_path) == StepActivity("waiting", why, "warn")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("waiting", "a provider works on batches: `millrace job poll` asks for them"),
        ("lost", "the run lost what it needs: Spark, a worker or the owner of the journals"),
        ("killed", "the run was killed"),
    ],
)
def test_a_run_that_ended_says_why_rows_are_left(
    tmp_path: Path, played: Played, state: str, why: str
) -> None:
    if state != "killed":
        played.tell(JobEventKind.ENDED, 1, "", state=state, report={})
    assert activity(tmp_path).why == f"10 rows wait; {why}"
