"""The dashboard and the alert rules name metrics and labels that a scrape has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from tests.unit import at_rest_kit
from tests.unit.pipeline.worker.worker_kit import Bench, fill, hop, map_step

import millrace as mr
from millrace.metrics.counts import counted
from millrace.metrics.metric import MetricKind
from millrace.metrics.metric_catalog import METRICS
from millrace.metrics.process_metrics import (
    BACK_PRESSURED,
    FETCH_QUEUE_BYTES,
    FETCHED_BYTES,
    LEASES_LOST,
    OWNER_CALLS,
    RETRIES,
    SENT_BYTES,
    SPILLED_BYTES,
    TAKEOVERS,
    WAITING,
)
from millrace.metrics.process_reports import FOLDER, encode, process_name
from millrace.page.exposition import exposed
from millrace.storage.local import LocalStore
from millrace.system.metric_samples import MetricCollector
from millrace.system.resting_workspace import RestingWorkspace

FILES = Path(__file__).parents[3] / "examples" / "monitoring"
SUFFIXES = ("_bucket", "_sum", "_count")
PROMETHEUS_LABELS = {"instance", "le"}
BUDGET = "millrace_step_budget_used_ratio"
"""Shown for steps with a budget alone."""


def expressions() -> Iterator[str]:
    """Of all rules and panels."""
    yield from re.findall(r"^ +expr: (.+)$", (FILES / "alerts.yml").read_text(), re.MULTILINE)
    dashboard = json.loads((FILES / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def named() -> set[str]:
    return {name for text in expressions() for name in re.findall(r"millrace_[a-z_]+", text)}


def family(name: str) -> str:
    """The metric of a series."""
    stem = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
    is_times = stem in METRICS and METRICS[stem].kind in (MetricKind.HISTOGRAM, MetricKind.SUMMARY)
    return stem if is_times else name


def test_every_name_is_a_metric() -> None:
    assert len(named()) > 40
    assert sorted(name for name in named() if family(name) not in METRICS) == []


def test_every_label_is_one_of_the_metrics_that_are_asked() -> None:
    for text in expressions():
        known = {label for name in re.findall(r"millrace_[a-z_]+", text)
                 for label in METRICS[family(name)].labels} | PROMETHEUS_LABELS  # fmt: skip
        for some in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", text):
            assert {each.strip() for each in some.split(",") if each.strip()} <= known, text
        for some in re.findall(r"\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=~?", some)) <= known, text


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The series of a workspace with queries, a job, a read, and processes that worked there."""
    folder = tmp_path_factory.mktemp("scraped")
    at_rest_kit.build(folder / "mill", seed=1)
    bench = Bench(folder, [hop(map_step("ask", dict, expensive=True))])
    fill(bench.broker, range(3))
    bench.run()
    # What this process did not meet: their own tests see that they are counted.
    for tally in (TAKEOVERS, RETRIES, LEASES_LOST, SENT_BYTES, WAITING, BACK_PRESSURED,
                  SPILLED_BYTES, FETCHED_BYTES, FETCH_QUEUE_BYTES):  # fmt: skip
        tally.add(0, *(["x"] * (len(tally.metric.labels) - 1)))
    OWNER_CALLS.note(0.0, "x")
    with mr.open(folder / "mill") as ws:
        ws.journals.create("big", pa.schema([("n", pa.int64())]))
        ws.journals.append("big", pa.table({"n": range(200_000)}))
        store = LocalStore(ws.path)
        store.make_folder(FOLDER)
        store.replace(f"{FOLDER}/1.json", encode(counted(process_name()), time.time()))
        with RestingWorkspace.at(store.root) as resting:
            text = exposed(MetricCollector(resting).samples(), "")[0].decode()
    return {sample.name for found in parse(text) for sample in found.samples}


def test_every_name_is_in_a_scrape(scrape: set[str]) -> None:
    assert sorted(named() - scrape - {BUDGET}) == []


def test_the_dashboard_shows_and_the_rules_watch_each_on_their_own() -> None:
    dashboard = json.loads((FILES / "grafana.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
    alerts = re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())
    assert len(set(alerts)) == len(alerts)
