"""Times of workers are those that their processes last said, by step and process."""

from __future__ import annotations

import time
from pathlib import Path

import millrace as mr
from millrace.metrics.metric import MetricSample
from millrace.metrics.process_metrics import (
    BACK_PRESSURED,
    BUSY,
    CALL_SECONDS,
    IN_FUNCTION,
    WAITING,
)
from millrace.metrics.process_reports import FOLDER, encode
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.worker_times import WorkerTime, times_of, worker_times

SAMPLES = [
    MetricSample(BUSY.metric.name, ("captions", "caption", "box:7"), 10.0),
    MetricSample(IN_FUNCTION.metric.name, ("captions", "caption", "box:7"), 8.0),
    MetricSample(WAITING.metric.name, ("captions", "out", "box:7"), 3.0),
    MetricSample(BACK_PRESSURED.metric.name, ("captions", "caption", "box:8"), 2.0),
    MetricSample(BUSY.metric.name, ("other", "caption", "box:7"), 99.0),
    MetricSample(CALL_SECONDS.metric.name, ("captions", "caption", "box:7"), 1.0),
]
TIMES = [
    WorkerTime(process="box:7", step="caption", function=8.0, publishing=2.0),
    WorkerTime(process="box:8", step="caption", back_pressured=2.0),
    WorkerTime(process="box:7", step="out", waiting=3.0),
]


def test_times_are_by_step_and_process_of_one_job() -> None:
    assert times_of(SAMPLES, "captions") == TIMES
    assert [each.total for each in TIMES] == [10.0, 2.0, 3.0]
    assert times_of([], "captions") == []


def test_calls_side_by_side_may_take_more_than_their_workers_time() -> None:
    many = [MetricSample(IN_FUNCTION.metric.name, ("captions", "caption", "box:7"), 80.0)]
    (found,) = times_of([*SAMPLES[:1], *many], "captions")
    assert (found.function, found.publishing) == (80.0, 0.0)


def test_reports_of_a_workspace_are_read_while_they_are_young(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    folder = tmp_path / "mill" / FOLDER
    folder.mkdir(exist_ok=True)
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        known = [sample for sample in SAMPLES if sample.metric != CALL_SECONDS.metric.name]
        (folder / "7-ab.json").write_bytes(encode(known, time.time()))
        assert worker_times(resting, "captions") == TIMES
        (folder / "7-ab.json").write_bytes(encode(known, time.time() - 3_600))
        assert worker_times(resting, "captions") == []
