"""Whole runs of a job with a Delta sink, led as on Spark, with workers that are threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import millrace as mr
from millrace.errors import MillraceError, SchemaMismatch, StorageError, UserError
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


class Growing:
    """A run without an end, over a journal that grows; a signal's exception ends it."""

    def __init__(self, ws: mr.Workspace, table: Path, scratch: Path) -> None:
        self.ws, self.table, self.scratch = ws, table, scratch

    def run_until(self, story: Callable[[], None]) -> JobReport:
        """Run while the story is told beside it; the report of the run."""
        told: list[BaseException] = []

        def beside() -> None:
            try:
                story()
            except BaseException as error:  # noqa: BLE001 - raised again below
                told.append(error)
            os.kill(os.getpid(), signal.SIGALRM)

        reports: list[JobReport] = []
        observer = Observed(reports)
        broker = broker_of(self.ws.journals)
        before = signal.signal(signal.SIGALRM, _raise_limit)
        thread = threading.Thread(target=beside)
        thread.start()
        try:
            with pytest.raises(TimeoutError, match="the scheduler's limit"):
                run_job(
                    runtime_of(self.ws),
                    job_of(self.ws, self.table),
                    lambda: ThreadRuntime(broker, self.scratch),
                    until="forever",
                    observer=observer,
                )
        finally:
            thread.join()
            signal.signal(signal.SIGALRM, before)
        if told:
            raise told[0]
        return reports[0]

    def wait_for(self, *numbers: int) -> None:
        """Wait until the table has these rows, and no others."""
        until = time.monotonic() + 60
        made = self.table / "_delta_log" / f"{0:020}.json"
        while (found := ids(self.table) if made.exists() else []) != list(numbers):
            assert time.monotonic() < until, f"so far: {found}"
            time.sleep(0.02)


class Observed:
    """See `RunObserver`."""

    def __init__(self, reports: list[JobReport]) -> None:
        self._reports = reports

    def on_progress(self, steps: object) -> None:
        pass

    def on_report(self, report: JobReport) -> None:
        self._reports.append(report)


def _raise_limit(_number: int, _frame: object) -> None:
    raise TimeoutError("the scheduler's limit")


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


BY_TIME = {"job_sink_wait": 0.1, "job_commit_wait": 0.1}
BY_SIZE = {"job_sink_wait": 0.1, "job_commit_wait": "1h", "job_commit_bytes": 1_000}


@pytest.mark.parametrize("how", [BY_TIME, BY_SIZE])
def test_a_growing_source_is_committed_by_time_or_size_until_an_exception_of_a_signal_ends_the_run(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    table = tmp_path / "t"
    with mr.open(tmp_path / "mill", create=True, config=CONFIG.with_options(**how)) as ws:
        ws.journals.create("in", numbers(0, 1).schema)
        growing = Growing(ws, table, tmp_path)

        def story() -> None:
            for begin in range(0, 300, 100):
                ws.journals.append("in", numbers(begin, 100))
                growing.wait_for(*range(0, begin + 100, 2))
            # What is not committed yet is when the run ends in order.
            ws.journals.append("in", numbers(300, 2))

        report = growing.run_until(story)
        assert report.state == "interrupted"
        versions = [commit.version for commit in report.commits]
        assert versions == list(range(1, len(versions) + 1))
        assert len(versions) >= 3
        assert sum(commit.rows for commit in report.commits) == len(ids(table))
        status = job_of(ws, table).status()
        assert (status.state, status.holder) == ("interrupted", None)

        last = run(ws, job_of(ws, table), tmp_path)
        assert last.state == "finished"
        assert ids(table) == list(range(0, 302, 2))


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


def test_small_files_are_put_together_when_there_are_so_many_and_rows_stay_as_they_are(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    files, versions = [], []
    for begin in range(0, 60, 10):
        ws.journals.append("in", numbers(begin, 10))
        job = ws.job("copy")
        job.source("rows", journal="in").sink_delta(table, "all", compact_after=4)
        report = run(ws, job, tmp_path)
        assert [commit.rows for commit in report.commits] == [10]
        versions += [commit.version for commit in report.commits]
        files.append(len(DeltaTable(str(table)).file_uris()))
        assert ids(table) == list(range(begin + 10))
    assert files == [1, 2, 3, 1, 2, 3]
    assert versions == [1, 2, 3, 4, 6, 7], "version 5 put files together"
    rows = ws.job("other").source("rows", journal="in")
    for bad in (0, 1, 1_000_000):
        with pytest.raises(UserError, match=f"compact_after is {bad}"):
            rows.sink_delta(table, "all", compact_after=bad)


def test_a_compaction_that_fails_is_no_matter_of_the_job(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.tables.delta import compaction

    def fails(*_: object) -> None:
        raise StorageError("no room\n  to fix: make some")

    table = tmp_path / "t"
    monkeypatch.setattr(compaction, "compact", fails)
    for begin in range(0, 30, 10):
        ws.journals.append("in", numbers(begin, 10))
        job = ws.job("copy")
        job.source("rows", journal="in").sink_delta(table, "all", compact_after=2)
        assert run(ws, job, tmp_path).state == "finished"
    assert ids(table) == list(range(30))
