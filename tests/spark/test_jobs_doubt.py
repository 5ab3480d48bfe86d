"""Calls that nobody knows the outcome of, and workers there are too many of."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import DEADLY, TEXTS, calls, caption, happened, ids

import millrace as mr
from millrace.errors import StepFailed
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run import job_run
from millrace.pipeline.run.job_status import job_status
from millrace.pipeline.run.worker_orders import WorkerGroup

pytestmark = pytest.mark.spark
ROWS = 24
BATCH = 4


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=DEADLY) as opened:
        yield opened


class Deadly:
    """A job whose worker is killed once, in the middle of a batch."""

    def __init__(self, ws: mr.Workspace, folder: Path) -> None:
        self.ws, self.log, self.out = ws, folder / "log", folder / "out"
        self.marker = os.fspath(folder / "killed")

    def run(self, on_doubt: Literal["retry", "skip", "hold"]) -> JobReport:
        note, marker = caption(self.log), self.marker

        def deadly(row: dict) -> dict:  # type: ignore[type-arg]
            made = note(row)
            if row["id"] == 10 and not os.path.exists(marker):
                with open(marker, "x"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        job = self.ws.job("deadly")
        rows = self.ws.spark.range(ROWS).selectExpr("id", "concat('u', id) AS url")
        made = job.source("videos", rows, partitions=2).map(
            "call",
            deadly,
            schema=TEXTS,
            expensive=True,
            batch_rows=BATCH,
            on_doubt=on_doubt,
            version="1",
        )
        made.sink_parquet(self.out)
        return job.run()


def test_a_step_told_to_hold_stops_the_job_and_the_user_s_choice_lets_it_go_on(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    deadly = Deadly(ws, tmp_path)

    with pytest.raises(StepFailed) as held:
        deadly.run("hold")

    text = str(held.value)
    assert "step 'call' of job 'deadly' has calls in doubt, and is told to hold" in text
    assert "run with on_doubt='retry' or 'skip'" in text
    (event,) = happened(ws, "deadly", JobEventKind.HELD)
    assert event.detail["calls"] == 1, "only the call that the worker died in"
    assert f"at: {event.detail['journal']}" in text
    assert job_status(ws._joined_broker(), "deadly").state == "held"
    made = calls(deadly.log)
    assert max(made.values()) == 1, "what is in doubt was not called for again"

    with pytest.raises(StepFailed, match="told to hold"):
        deadly.run("hold")

    assert len(happened(ws, "deadly", JobEventKind.HELD)) == 2, "each run says it once"
    assert max(calls(deadly.log).values()) == 1
    report = deadly.run("skip")
    assert report.state == "finished"
    step = report.step("call")
    assert (step.in_doubt, step.skipped, step.dead_letters) == (1, 1, 1)
    assert ids(deadly.out) == [row for row in range(ROWS) if row != 10]
    assert max(calls(deadly.log).values()) == 1, "nothing was paid for twice"


def test_a_step_that_held_makes_the_calls_again_if_it_is_told_to(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    deadly = Deadly(ws, tmp_path)
    with pytest.raises(StepFailed, match="told to hold"):
        deadly.run("hold")

    report = deadly.run("retry")

    assert ids(deadly.out) == list(range(ROWS))
    made, step = calls(deadly.log), report.step("call")
    assert step.in_doubt == 1
    assert made == {row: 1 + (row == 10) for row in range(ROWS)}
    assert step.calls == ROWS + 1


def test_a_second_copy_of_a_worker_waits_and_doubles_nothing(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, at_work = tmp_path / "log", tmp_path / "at work"
    note, folder = caption(log), os.fspath(at_work)
    at_work.mkdir()
    twice = os.fspath(tmp_path / "two at once")

    def two_of_each(hops: Sequence[Hop], units: Mapping[str, int], slots: int) -> list[WorkerGroup]:
        del hops, units
        return [
            WorkerGroup(None, (), slots)
        ]  # More workers than units, as Spark's copies would be.

    def alone(row: dict) -> dict:  # type: ignore[type-arg]
        mine = os.path.join(folder, str(os.getpid()))
        with open(mine, "w"):
            pass
        if len(os.listdir(folder)) > 1:
            with open(twice, "w"):
                pass
        time.sleep(0.02)
        os.unlink(mine)
        return note(row)

    monkeypatch.setattr(job_run, "worker_groups", two_of_each)
    job = ws.job("copies")
    rows = ws.spark.range(ROWS).selectExpr("id", "concat('u', id) AS url")
    made = job.source("videos", rows, partitions=1).map(
        "call", alone, schema=TEXTS, expensive=True, batch_rows=BATCH, version="1"
    )
    made.sink_parquet(tmp_path / "out")

    report = job.run()

    assert calls(log) == dict.fromkeys(range(ROWS), 1)
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert not os.path.exists(twice), "one worker at a time has the unit"
    assert (report.step("call").calls, report.step("call").in_doubt) == (ROWS, 0)
