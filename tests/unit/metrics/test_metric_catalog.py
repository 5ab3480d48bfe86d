"""Names, units and words of metrics, and the page that lists them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from millrace.metrics.metric import PREFIX, UNITS, Metric, MetricKind, bucket_of
from millrace.metrics.metric_catalog import METRICS

ROOT = Path(__file__).parents[3]
OTHER_UNITS = ("ms", "milliseconds", "minutes", "kb", "mb", "percent", "usd")


def test_the_page_is_what_the_code_makes() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "metrics.py"))["page"]()

    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == made, "run: python scripts/metrics.py"


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_names_follow_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    parts = metric.name.removesuffix("_total").split("_")
    assert [part for part in parts[:-1] if part in UNITS] == []
    assert [part for part in parts if part in OTHER_UNITS] == []
    assert metric.about.endswith(".")
    assert list(metric.bounds) == sorted(set(metric.bounds))
    for label in metric.labels:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", label)
        assert label not in ("le", "quantile", "instance", "job"), "those of Prometheus"


def test_a_value_falls_into_the_first_bucket_that_is_not_below_it() -> None:
    assert [bucket_of((1.0, 2.0), value) for value in (0.5, 1.0, 1.5, 2.0, 9.0)] == [0, 0, 1, 1, 2]


def test_no_two_names_differ_by_total_alone() -> None:
    # OpenMetrics has families, whose names lack it.
    families = [name.removesuffix("_total") for name in METRICS]
    assert len(set(families)) == len(families)
