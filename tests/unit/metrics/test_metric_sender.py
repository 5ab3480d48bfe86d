"""Metrics as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import time

from tests.unit.metrics.collector_kit import Collector, collector, values

from millrace.metrics.metric import MetricSample
from millrace.metrics.metric_sender import MetricSender
from millrace.metrics.process_metrics import COMMIT_SECONDS
from millrace.metrics.workspace_metrics import FILE_BYTES, RUNS

COUNTS = (2, 0, 1, *[0] * (len(COMMIT_SECONDS.metric.bounds) - 2))
SAMPLES = [
    MetricSample(RUNS.name, (), 3.0),
    MetricSample(FILE_BYTES.name, ("journals",), 4096.0),
    MetricSample(COMMIT_SECONDS.metric.name, ("box:71",), 0.5, COUNTS),
    MetricSample("millrace_of_another_version", (), 1.0),
]


def test_names_kinds_and_units_are_those_of_the_catalogue() -> None:
    with collector() as there:
        assert MetricSender(there.url, lambda: SAMPLES).send()

    sent = there.metrics()
    assert sent.keys() == {RUNS.name, FILE_BYTES.name, COMMIT_SECONDS.metric.name}
    runs, sizes, commits = (sent[each.metric] for each in SAMPLES[:3])
    assert (runs.sum.is_monotonic, runs.sum.data_points[0].as_double) == (True, 3.0)
    assert runs.description == RUNS.about
    (size,) = sizes.gauge.data_points
    assert (sizes.unit, size.as_double, values(size.attributes)) == (
        "By",
        4096.0,
        {"kind": "journals"},
    )
    (commit,) = commits.histogram.data_points
    assert (commit.count, commit.sum, tuple(commit.bucket_counts)) == (3, 0.5, COUNTS)
    assert tuple(commit.explicit_bounds) == COMMIT_SECONDS.metric.bounds


def test_values_are_sent_now_and_then() -> None:
    with collector() as there:
        sender = MetricSender(there.url, lambda: SAMPLES, every_s=0.02)
        sender.start()
        _wait_for(there)
        sender.close()
    assert there.metrics()[RUNS.name].sum.data_points[0].as_double == 3.0


def _wait_for(there: Collector) -> None:
    until = time.monotonic() + 30
    while not there.bodies:
        assert time.monotonic() < until
        time.sleep(0.01)
