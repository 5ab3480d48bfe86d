"""Metrics at rest say what the Python API says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.errors import StorageError
from millrace.journal.core.values import Lease
from millrace.metrics import workspace_metrics as metrics
from millrace.metrics.metric import Metric, MetricSample
from millrace.metrics.metric_catalog import METRICS
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.run.job_status import job_status
from millrace.system import file_totals, job_metrics, metric_samples
from millrace.system.job_reading import names_of_running_jobs
from millrace.system.metric_samples import MetricCollector
from millrace.system.resting_workspace import RestingWorkspace
from millrace.workspace import runtime_of

ROWS = pa.schema([("n", pa.int64())])


class Scrape:
    """Samples of one look, by metric and labels."""

    def __init__(self, samples: list[MetricSample]) -> None:
        self.values = {(sample.metric, sample.labels): sample.value for sample in samples}
        assert len(self.values) == len(samples), "each value once"
        for sample in samples:
            assert len(sample.labels) == len(METRICS[sample.metric].labels), sample

    def of(self, metric: Metric, *labels: str) -> float | None:
        return self.values.get((metric.name, labels))


def scrape(path: str) -> Scrape:
    with RestingWorkspace.at(path) as resting:
        return Scrape(MetricCollector(resting).samples())


@pytest.mark.parametrize("ledger", ["sqlite", "files"])
def test_steps_are_what_the_status_of_the_job_says(tmp_path: Path, ledger: str) -> None:
    with mr.open(tmp_path / "mill", ledger=ledger) as ws:
        played = Played.started(runtime_of(ws).joined_broker())
        played.do("caption", "videos", 0, 4)
        played.record_calls(0, Totals(calls=5, in_doubt=1, errors=2, nano_usd=2_500_000_000))
        played.dead_letter("caption")

        found = scrape(ws.path)

        for step in job_status(played.broker, JOB).steps:
            assert found.of(metrics.STEP_ROWS_IN, JOB, step.name) == step.rows_in
            assert found.of(metrics.STEP_BACKLOG, JOB, step.name) == step.backlog
            assert found.of(metrics.STEP_CALLS, JOB, step.name) == step.calls
            assert found.of(metrics.STEP_LETTERS, JOB, step.name) == step.dead_letters
        backlogs = [
            ws.journals.backlog(hops.step_root(JOB, "caption"), name)
            for name in (hops.output_journal(JOB, "videos", n) for n in range(2))
        ]
        assert found.of(metrics.GROUP_LAG, hops.step_root(JOB, "caption")) == backlogs[0]
    assert found.of(metrics.STEP_DOLLARS, JOB, "caption") == 2.5
    assert found.of(metrics.STEP_BUDGET, JOB, "caption") is None
    assert found.of(metrics.JOB_STATE, JOB, "killed") == 1
    assert found.of(metrics.OWNER_UP) == 1
    assert [key for key, value in found.values.items() if key[0] == metrics.SCRAPE_FAILED.name
            and value] == []  # fmt: skip


def test_a_budget_is_used_as_far_as_its_nearest_limit() -> None:
    part = JobRecord.from_json(
        {"job": JOB, "parts": [{"name": "a", "kind": "map", "paid": {"usd": 10}, "max_calls": 20}]}
    ).parts[0]

    used = [
        job_metrics._budget_used(part, Totals(calls=calls, nano_usd=usd * 10**9), 0)
        for calls, usd in ((5, 9), (19, 2))
    ]

    assert used == [0.9, 0.95]


def test_the_owner_is_up_until_its_process_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "mill")
    with mr.open(path, create=True) as ws:
        assert scrape(path).of(metrics.OWNER_UP) is None
        ws.journals.create("orders", ROWS)
        assert scrape(path).of(metrics.OWNER_UP) == 1
        shutil.copy(f"{path}/owner.json", tmp_path)
    assert scrape(path).of(metrics.OWNER_UP) is None

    # As a process that was killed leaves it.
    text = (tmp_path / "owner.json").read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194305')
    Path(path, "owner.json").write_text(text)

    assert scrape(path).of(metrics.OWNER_UP) == 0


def test_running_jobs_come_before_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_metrics, "JOBS_MAX", 1)
    with mr.open(tmp_path / "mill") as ws:
        broker = runtime_of(ws).joined_broker()
        Played.started(broker)
        for name in ("aaa", "zzz"):
            ws.journals.create(hops.runs_journal(name), broker.get(hops.runs_journal(JOB)).schema)
        lease: Lease = broker.acquire(hops.run_lease(JOB), "me", lease_ms=60_000)
        broker.acquire(hops.unit_lease("aaa", "run", 1), "me", lease_ms=60_000)

        with RestingWorkspace.at(ws.path) as resting:
            assert names_of_running_jobs(resting) == {JOB}
        found = scrape(ws.path)
        broker.release(lease)

    assert found.of(metrics.JOB_RUNS, JOB) == 1
    assert found.of(metrics.LEASES, JOB) == 1
    assert found.of(metrics.JOB_RUNS, "aaa") is None
    assert found.of(metrics.SCRAPE_JOBS_LEFT_OUT) == 2


def test_what_cannot_be_read_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", ROWS)
    (tmp_path / "mill" / "journals" / "ledger.sqlite").write_bytes(b"no ledger" * 500)

    found = scrape(str(tmp_path / "mill"))

    assert found.of(metrics.SCRAPE_FAILED, "journals") == 1
    assert found.of(metrics.SCRAPE_FAILED, "workspace") == 0
    assert found.of(metrics.DISK_FREE)


def test_scrapers_share_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        collector = MetricCollector(resting)
        first = collector.samples()
        assert collector.samples() is first

        monkeypatch.setattr(metric_samples, "REUSE_S", -1.0)

        assert collector.samples() is not first


def test_files_that_cannot_be_counted_are_counted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        totals = file_totals.FileTotals()

        def fails(_store: object) -> object:
            raise StorageError("no disk")

        with monkeypatch.context() as patched:
            patched.setattr(file_totals, "file_rows", fails)
            with pytest.raises(StorageError, match="no disk"):
                totals.counted(resting.store)

        counted = totals.counted(resting.store)

    assert counted is not None
    assert counted.kinds["workspace"][0] >= 1
