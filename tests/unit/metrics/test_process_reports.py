"""Reports of processes in a workspace: written while they live, and trusted in nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.metrics import process_reports
from millrace.metrics.metric import MetricSample
from millrace.metrics.metric_catalog import PROCESS_METRICS
from millrace.metrics.process_metrics import COMMIT_SECONDS, TAKEOVERS
from millrace.metrics.process_reports import (
    FOLDER,
    OLD_S,
    begin_report,
    decode,
    encode,
    end_report,
    process_name,
    remove_old,
    reported,
)
from millrace.storage.local import LocalStore
from millrace.system.metric_samples import MetricCollector
from millrace.system.resting_workspace import RestingWorkspace

NOW = 1_800_000_000.0
COUNTS = (0,) * (len(COMMIT_SECONDS.metric.bounds) + 1)
GIVEN = [
    MetricSample(TAKEOVERS.metric.name, ("host:1",), 2.0),
    MetricSample(COMMIT_SECONDS.metric.name, ("host:1",), 0.5, COUNTS),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(str(tmp_path))
    made.make_folder(FOLDER)
    (tmp_path / "workspace.json").write_text("{}")
    return made


def test_what_is_written_is_read() -> None:
    assert decode(encode(GIVEN, NOW), PROCESS_METRICS) == (NOW, GIVEN)


@given(
    name=st.sampled_from([*PROCESS_METRICS, "other"]), labels=JSON, value=JSON, counts=JSON, at=JSON
)
def test_whatever_a_report_holds_what_is_taken_fits_the_catalogue(
    name: str, labels: object, value: object, counts: object, at: object
) -> None:
    data = json.dumps({"at": at, "samples": [[name, labels, value, counts], labels]}).encode()

    _, samples = decode(data, PROCESS_METRICS)

    for sample in samples:
        metric = PROCESS_METRICS[sample.metric]
        assert len(sample.labels) == len(metric.labels)
        assert not metric.bounds or len(sample.counts) == len(metric.bounds) + 1


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"at": 1}', b"[" * 100_000])
def test_what_is_damaged_is_as_if_it_were_not_there(store: LocalStore, data: bytes) -> None:
    store.replace(f"{FOLDER}/x.json", data)
    store.replace(f"{FOLDER}/y.json", encode(GIVEN, NOW))

    assert reported(store, PROCESS_METRICS, NOW) == GIVEN


def test_reports_of_killed_processes_are_left_out_and_then_removed(store: LocalStore) -> None:
    store.replace(f"{FOLDER}/x.json", encode(GIVEN, NOW))

    assert reported(store, PROCESS_METRICS, NOW + OLD_S - 1) == GIVEN
    assert reported(store, PROCESS_METRICS, NOW + OLD_S + 1) == []
    remove_old(store, NOW + 3_600)
    assert store.names(FOLDER) == ["x.json"]
    remove_old(store, NOW + 90_000)
    assert store.names(FOLDER) == []


def test_a_process_reports_until_its_last_user_ends(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_reports, "EVERY_S", 0.01)
    TAKEOVERS.add()
    begin_report(store)
    begin_report(store)
    end_report(store)
    until = time.monotonic() + 30
    while not (found := reported(store, PROCESS_METRICS, time.time())):
        assert time.monotonic() < until
        time.sleep(0.01)
    end_report(store)

    assert {sample.labels[-1] for sample in found} == {process_name()}
    assert store.names(FOLDER) == []


def test_nothing_is_written_where_the_workspace_was_deleted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_reports, "EVERY_S", 0.001)
    os.unlink(store.path("workspace.json"))
    os.rmdir(store.path(FOLDER))

    with process_reports.reporting(store):
        time.sleep(0.05)

    assert os.listdir(store.root) == []


def test_the_counts_of_an_owner_are_scraped_while_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_reports, "EVERY_S", 0.01)
    path = str(tmp_path / "mill")

    def commits() -> float:
        with RestingWorkspace.at(path) as resting:
            samples = MetricCollector(resting).samples()
        mine = [s for s in samples if s.metric == COMMIT_SECONDS.metric.name]
        return sum(sum(sample.counts) for sample in mine)

    with mr.open(path) as ws:
        before = sum(sum(s.counts) for s in COMMIT_SECONDS.samples("p"))
        ws.journals.create("orders", pa.schema([("n", pa.int64())]))
        ws.journals.append("orders", pa.table({"n": [1]}))
        until = time.monotonic() + 30
        while commits() < before + 2:
            assert time.monotonic() < until
            time.sleep(0.02)

    assert commits() == 0
