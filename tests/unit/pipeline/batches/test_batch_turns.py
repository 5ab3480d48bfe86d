"""Turns on a unit that asks in batches: waiting, polling, changing the mode, being refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.pipeline.batches.batch_job_kit import CONFIG, PARTITIONS, ROWS, job_hop, model
from tests.unit.pipeline.worker.worker_kit import JOB, Bench, fill, happened, output

import millrace as mr
from millrace.cli.main import cli
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.prompts.batch_asking import Mode
from millrace.pipeline.run.batch_polling import awaited_batches, wait_for_batches
from millrace.testing.paid_models.batch_desk import BatchPlan
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels
from millrace.workspace import runtime_of


@dataclass
class Plans:
    """How batches go, as the test wants it now."""

    plan: BatchPlan

    def __call__(self, number: int) -> BatchPlan:
        del number
        return self.plan


@dataclass
class Place:
    """A workspace, a provider, and runs of a job that asks it."""

    folder: Path
    service: PaidModels
    plans: Plans
    bench: Bench

    def run(self, mode: Mode = "batch", url: str = "") -> list[JobEvent]:
        """A run of the job, and its events."""
        llm = model("openai", self.service)
        llm = replace(llm, base_url=url or llm.base_url)
        self.bench = self.bench.again(hops=[job_hop(llm, mode)])
        self.bench.run()
        return [event for event in happened(self.bench.broker) if event.run == self.bench.epoch]

    def run_until(self, kind: JobEventKind | None) -> None:
        """Runs of the job, until all has come out or there is an event of a kind."""
        deadline = time.monotonic() + 60
        while len(self.answers()) < ROWS and time.monotonic() < deadline:
            if any(event.happened is kind for event in self.run()):
                return

    def answers(self) -> list[str]:
        return output(self.bench.broker, "ask", "answer")

    def paid(self) -> list[str]:
        return [charge.kind for charge in charges(self.service.desk.invoice.path)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    plans = Plans(BatchPlan())
    with (
        PaidModels(tmp_path / "invoice.log", plans=plans) as service,
        mr.open(tmp_path / "mill") as ws,
    ):
        broker = runtime_of(ws).joined_broker()
        fill(broker, range(ROWS), partitions=PARTITIONS)
        hop = job_hop(model("openai", service))
        yield Place(tmp_path, service, plans, Bench(tmp_path, [hop], CONFIG, broker))


def poll(place: Place) -> tuple[int, list[dict[str, object]]]:
    done = CliRunner().invoke(cli, ["job", "poll", str(place.folder / "mill"), JOB, "--json"])
    return done.exit_code, json.loads(done.output)


def test_a_poll_says_without_a_definition_when_a_run_would_go_on(place: Place) -> None:
    place.plans.plan = BatchPlan(seconds=3.0)
    events = place.run()

    waiting = {e.detail["journal"] for e in events if e.happened is JobEventKind.WAITING}
    in_work = poll(place)
    wait_for_batches(place.bench.broker, JOB, CONFIG)
    ended = poll(place)

    assert waiting
    assert in_work[0] == 3
    assert {batch["state"] for batch in in_work[1]} == {"in work"}
    assert ended[0] == 0
    assert "ended" in {batch["state"] for batch in ended[1]}
    assert place.answers() == []
    place.run_until(None)
    assert poll(place) == (0, [])
    assert sorted(place.answers()) == sorted(f"about number {x}" for x in range(ROWS))
    assert place.paid() == ["batch"] * ROWS


def test_a_step_that_asks_one_by_one_from_now_on_takes_what_its_batch_has(place: Place) -> None:
    place.plans.plan = BatchPlan(seconds=0.5)
    place.run()
    made = sum(batch.rows for batch in awaited_batches(place.bench.broker, JOB, CONFIG))
    wait_for_batches(place.bench.broker, JOB, CONFIG)

    for _ in range(20):
        place.run("calls")

    assert len(place.answers()) == ROWS
    assert sorted(place.paid()) == ["batch"] * made + ["chat"] * (ROWS - made)


def test_few_rows_are_asked_one_by_one_if_the_step_may_choose(place: Place) -> None:
    place.run("auto")

    assert len(place.answers()) == ROWS
    assert place.paid() == ["chat"] * ROWS


def test_a_server_without_batches_ends_the_run_and_nothing_is_lost(place: Place) -> None:
    events = place.run(url=f"{place.service.anthropic_url}/nowhere")

    (failed,) = [event for event in events if event.happened is JobEventKind.FAILED]
    assert "no POST /nowhere/files" in failed.detail["error"]
    assert "to fix:" in failed.detail["error"]
    place.run_until(None)
    assert len(place.answers()) == ROWS


def test_a_batch_that_was_cancelled_ends_the_run_and_the_next_asks_for_the_rest(
    place: Place,
) -> None:
    place.plans.plan = BatchPlan(seconds=600)
    place.run()
    desk = place.service.desk.batches
    for batch in desk.batches:
        desk.cancel(time.time(), batch.id)
    place.plans.plan = BatchPlan()

    place.run_until(JobEventKind.FAILED)

    failed = [e for e in happened(place.bench.broker) if e.happened is JobEventKind.FAILED]
    assert "was cancelled" in failed[0].detail["error"]
    place.run_until(None)
    for _ in range(20):
        place.run()
    assert sorted(place.answers()) == sorted(f"about number {x}" for x in range(ROWS))
    assert place.paid() == ["batch"] * ROWS
