"""Rows over time are those that journals had at each moment, also of a job that was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.page.views.job_views import job_page
from millrace.page.views.look import Look
from millrace.pipeline.report.job_report import StepReport
from millrace.system.job_reading import seen_job
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.step_history import rows_over_time
from millrace.system.workspace_now import JobNow, StepForecast, job_now
from millrace.workspace import runtime_of


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        yield Played.started(runtime_of(ws).joined_broker(), rows=200)


def test_rows_come_when_they_were_made_and_end_at_their_number(
    tmp_path: Path, played: Played
) -> None:
    begin_us = time.time_ns() // 1000
    for _ in range(5):
        time.sleep(0.02)
        for partition in range(2):
            played.do("caption", "videos", partition, 20)
    until_us = time.time_ns() // 1000

    with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
        names, samples = rows_over_time(job, begin_us, until_us)

    assert names == ["caption", "by_user"]
    caption = [rows[0] for _, rows in samples]
    assert caption == sorted(caption)
    assert (caption[0], caption[-1]) == (0, 200)
    assert 20 < caption[len(caption) // 2] < 180, "they came in between"
    assert {rows[1] for _, rows in samples} == {0}
    assert samples[-1][0] == pytest.approx((until_us - begin_us) / 1e6)


def test_the_page_of_a_killed_job_draws_its_rows(tmp_path: Path, played: Played) -> None:
    played.do("caption", "videos", 0, 20)

    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        page = job_page(Look(resting), JOB)

    assert page["status"].state == "killed"
    assert str(page["progress_svg"]).count("<polyline") == 2, "of two steps that keep rows"


def test_the_rest_of_a_step_is_forecast_while_it_runs(tmp_path: Path, played: Played) -> None:
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
        killed = job_now(resting, job)
    step = StepReport(name="caption", rows_in=100, backlog=300, rows_per_s=2.0, usd_left=3.0)
    status = replace(killed.status, state="running")

    def forecast(step: StepReport) -> StepForecast | None:
        return JobNow(status=status, states={}, workers=()).forecast(step)

    assert forecast(step) == StepForecast(150.0, 3.0)
    assert forecast(replace(step, usd_left=None)) == StepForecast(150.0, None)
    assert forecast(replace(step, rows_per_s=0.0)) is None
    assert forecast(replace(step, backlog=0)) is None
    assert killed.forecast(step) is None
    assert played.record.job == JOB
