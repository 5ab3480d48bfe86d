"""Whole runs of a job with a Delta sink, led as on Spark, with workers that are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import millrace as mr
from millrace.errors import MillraceError, SchemaMismatch, UserError
from millrace.journal.api import broker_of
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_run import run_job
from millrace.pipeline.run.worker_orders import WorkerGroup, WorkerOrder
from millrace.pipeline.worker.worker import Worker, WorkerSettings
from millrace.workspace import runtime_of

CONFIG = mr.Config(job_sink_wait=0.05, job_commit_wait=0.05, job_run_lease=60, job_lease=60)


class ThreadWorkers:
    """See `WorkerPool`: one worker, in a thread of this process."""

    def __init__(self, broker: Any, order: WorkerOrder, scratch: str) -> None:  # noqa: ANN401 - a broker
        self.error: MillraceError | None = None
        settings = WorkerSettings(
            config=order.config,
            holder="thread",
            run_epoch=order.run,
            time_zone="UTC",
            workspace=order.workspace,
            scratch=scratch,
            job_id=order.job_id,
            events_from=order.events_from,
            until_end=order.until_end,
        )
        worker = Worker(broker, order.hops, settings)
        self._thread = threading.Thread(target=worker.run, daemon=True)
        self._thread.start()

    def spent(self) -> dict[str, tuple[float, float]]:
        return {}

    def stop(self, wait_ms: int) -> bool:
        self._thread.join(wait_ms / 1000)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        pass


class ThreadRuntime:
    """See `JobRuntime`."""

    time_zone = "UTC"
    gives_resources = False
    intake: Any = None

    def __init__(self, broker: Any, scratch: Path) -> None:  # noqa: ANN401 - as above
        self._broker, self._scratch = broker, str(scratch)

    def check(self, hops: Sequence[Hop]) -> None:
        pass

    def slots(self) -> int:
        return 1

    def start_workers(
        self, order: WorkerOrder, groups: Sequence[WorkerGroup], deaths: Callable[[], int]
    ) -> ThreadWorkers:
        del groups, deaths
        return ThreadWorkers(self._broker, order, self._scratch)


def numbers(first: int, count: int) -> pa.Table:
    every = list(range(first, first + count))
    return pa.table({"id": every, "day": [f"day {n % 3}" for n in every]})


@pytest.fixture
def ws(tmp_path: Path) -> mr.Workspace:
    opened = mr.open(tmp_path / "mill", create=True, config=CONFIG)
    opened.journals.create("in", numbers(0, 1).schema)
    return opened


def job_of(ws: mr.Workspace, table: Path) -> mr.Job:
    job = ws.job("copy")
    rows = job.source("rows", journal="in")
    rows.filter("id % 2 = 0").sink_delta(table, "even", partition_by="day")
    return job


def run(ws: mr.Workspace, job: mr.Job, scratch: Path) -> JobReport:
    broker = broker_of(ws.journals)
    return run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker, scratch))


def ids(table: Path) -> list[int]:
    return sorted(pl.scan_delta(str(table)).collect()["id"].to_list())


def test_each_run_appends_what_is_new_and_its_report_has_the_commits(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    ws.journals.append("in", numbers(0, 100))
    first = run(ws, job_of(ws, table), tmp_path)
    write_deltalake(str(table), numbers(-5, 5), mode="append")
    ws.journals.append("in", numbers(100, 50))
    second = run(ws, job_of(ws, table), tmp_path)
    third = run(ws, job_of(ws, table), tmp_path)

    assert ids(table) == [*range(-5, 0), *range(0, 150, 2)]
    assert [(commit.version, commit.rows) for commit in first.commits] == [(1, 50)]
    assert [(commit.version, commit.rows) for commit in second.commits] == [(3, 25)]
    assert third.commits == ()
    assert third.step("even").rows_out == 75
    assert "even: 1 commits, 25 rows, the last is version 3 of the table" in str(second)
    assert second.html is not None
    assert "Commits to tables" in Path(second.html).read_text(encoding="utf-8")


def test_a_sink_is_set_back_only_if_its_rows_may_come_again(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    ws.journals.append("in", numbers(0, 4))
    job = job_of(ws, table)
    run(ws, job, tmp_path)
    with pytest.raises(UserError, match="has appended rows to table"):
        job.reset("even")
    job.reset("even", append_again=True)
    run(ws, job_of(ws, table), tmp_path)
    assert ids(table) == [0, 0, 2, 2]


def test_rows_that_the_table_cannot_take_are_refused_before_any_is_touched(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"id": ["a"], "day": ["b"]}), partition_by=["day"])
    ws.journals.append("in", numbers(0, 4))
    with pytest.raises(SchemaMismatch, match="column 'id' is long"):
        run(ws, job_of(ws, table), tmp_path)


def test_a_table_that_is_gone_when_files_are_committed_fails_the_run(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.tables.delta.delta_commits import DeltaCommits

    def fails(*_: object, **__: object) -> None:
        raise UserError("the table is gone\n  to fix: restore it")

    table = tmp_path / "t"
    ws.journals.append("in", numbers(0, 4))
    with monkeypatch.context() as broken:
        broken.setattr(DeltaCommits, "commit", fails)
        with pytest.raises(UserError, match="the table is gone"):
            run(ws, job_of(ws, table), tmp_path)
    assert ids(table) == []
    report = run(ws, job_of(ws, table), tmp_path)
    assert report.state == "finished"
    assert ids(table) == [0, 2]
