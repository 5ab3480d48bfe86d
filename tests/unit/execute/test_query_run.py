"""A whole query runs without Spark: tasks in this process, behind the port that Spark is behind."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import TaskFailed
from millrace.execute.lost_outputs import Lost
from millrace.execute.map_task import write_rows
from millrace.execute.query_run import QueryRun
from millrace.execute.results.written_stage import WrittenStage
from millrace.execute.shuffle_run import ShuffleRequest, map_stage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TaskTry, TaskWork, Watch
from millrace.execute.tasks.task_results import finished_results
from millrace.ids import AttemptId, QueryId, StageId
from millrace.keys import RoundRobinPartitioner
from millrace.log_lines import show_logs
from millrace.page import page_texts
from millrace.page.views import run_views
from millrace.page.views.look import Look
from millrace.plan.nodes.node import Node
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import StageReport
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.shuffle_tables import seen_stages, stage_row
from millrace.system.workspace_now import RunMemory
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

FILES, ROWS = 3, 40
TOKEN = "a token"  # noqa: S105 - nobody is asked to show it


class HereRunner:
    """Runs tasks one after the other in this process; only the last try's rows are taken."""

    def __init__(self, tries: int = 1) -> None:
        self.titles: list[str] = []
        self._tries = tries

    def slots(self) -> int:
        return 2

    def slots_of_host(self) -> int:
        return 2

    def run(
        self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
    ) -> pa.Table:
        self.titles.append(title)
        rows: list[pa.RecordBatch] = []
        for number in range(tasks):
            watch()
            for failed_before in range(self._tries):
                rows_of_task = list(work(TaskTry(number, failed_before)))
            rows += rows_of_task
        return pa.Table.from_batches(rows, schema)

    def about(self) -> Mapping[str, Any]:
        return {"versions": {}, "master": "here"}


class NoFrames:
    """A query that reads files alone."""

    def __init__(self, plan: Node) -> None:
        self.plan = plan
        self.shuffles: dict[int, Shuffle] = {}
        self.reports: tuple[StageReport, ...] = ()

    def rely(self, query_id: QueryId, stage_id: StageId) -> None:
        """Nothing is saved."""

    def save_again(self, lost: Sequence[Lost]) -> None:
        """Nothing is saved."""


@pytest.fixture
def totals(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, Dataset]]:
    for number in range(FILES):
        keys = [(number + row) % 7 for row in range(ROWS)]
        table = pa.table({"k": keys, "v": list(range(ROWS))})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    config = mr.Config(one_task_bytes_max=1, partition_bytes_target=64, read_together_bytes_max=1)
    with mr.open(tmp_path / "mill", config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(config, lambda _: None)
        workspace = ShuffleWorkspace(
            store=runtime_of(ws).store,
            folders=folders,
            config=config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )
        data = ws.read_parquet(tmp_path / "*.parquet")
        yield workspace, data.group_by("k").agg(n="count(*)", total="sum(v)").sort("k")


def start(
    workspace: ShuffleWorkspace,
    query: Dataset,
    runner: HereRunner,
    writes: WrittenStage | None = None,
) -> QueryRun:
    run = QueryRun(runner, workspace, NoFrames(query._plan), zone="UTC", writes=writes)
    run.finish()
    return run


def test_a_query_runs_stage_by_stage_and_a_second_run_reuses_all_of_it(
    totals: tuple[ShuffleWorkspace, Dataset], caplog: pytest.LogCaptureFixture
) -> None:
    workspace, query = totals
    caplog.set_level(logging.INFO, "millrace.execute")

    first = start(workspace, query, HereRunner())
    rows = pa.Table.from_batches(first.batches())
    runner = HereRunner()
    second = start(workspace, query, runner)

    assert rows["k"].to_pylist() == list(range(7))
    assert sum(rows["n"].to_pylist()) == FILES * ROWS
    assert sum(rows["total"].to_pylist()) == FILES * sum(range(ROWS))
    assert pa.Table.from_batches(second.batches()) == rows
    assert runner.titles == []
    assert all(report.ran == 0 for report in second.report.stages)
    assert "started" in caplog.text
    assert "reused" in caplog.text


def test_lines_of_the_log_name_the_run_the_stage_and_the_task(
    totals: tuple[ShuffleWorkspace, Dataset], capsys: pytest.CaptureFixture[str]
) -> None:
    show_logs("DEBUG", format="json")
    try:
        start(*totals, HereRunner())
    finally:
        show_logs("OFF")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    stages = [line for line in lines if line["logger"] == "millrace.execute.stage_run"]
    assert {line["stage"] for line in stages} >= {0, 1}
    tasks = [line for line in lines if "the task has run" in line["message"]]
    assert {line["task"] for line in tasks if line["stage"] == 0} == set(range(FILES))
    assert {line["run"] for line in [*stages, *tasks]} == {1}


def test_what_a_task_spilled_is_kept_with_its_stage_and_shown(
    totals: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, query = totals
    tight = replace(workspace, config=workspace.config.with_options(task_memory_bytes_max=100))

    start(tight, query, HereRunner())

    with RestingWorkspace.at(workspace.store.root) as resting:
        stages = [stage_row(stage) for stage in seen_stages(resting, QueryId(1))]
        assert stages[0]["spilled_bytes"] > 0
        assert stages[-1]["spilled_bytes"] == 0, "of one partition nothing has to wait"
        known = sum(stage["spilled_bytes"] for stage in stages)
        first = run_views.stage_page(Look(resting), 1, 0)
        spilled = [task["spilled_bytes"] for task in first["tasks"]]
        assert sum(spilled) == stages[0]["spilled_bytes"]
        assert all(spilled)
        assert "spilled" in [name for name, value, _ in first["figures"] if value is not None]
        figures = dict(run_views.run_page(Look(resting), RunMemory(), 1)["figures"][n][:2]
                       for n in (-2, -1))  # fmt: skip
        assert figures == {"spilled": page_texts.size(known), "fetched": None}


def test_a_lost_output_is_made_again_and_the_rest_is_reused(
    totals: tuple[ShuffleWorkspace, Dataset], caplog: pytest.LogCaptureFixture
) -> None:
    workspace, query = totals
    caplog.set_level(logging.INFO, "millrace.execute")
    run = start(workspace, query, HereRunner())
    expected = pa.Table.from_batches(run.batches())

    attempt = run.answer.manifest.chosen[0].attempt
    for file in Path(workspace.store.root, "shuffle", str(attempt)).glob("data.ipc"):
        file.unlink()

    assert pa.Table.from_batches(run.batches()) == expected
    assert list(run.report.stages[-1].again) == [0]
    assert "making them again" in caplog.text


def test_a_task_that_runs_twice_reports_the_attempt_that_was_finished_first(
    totals: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, query = totals

    run = start(workspace, query, HereRunner(tries=2))

    assert {choice.attempt.attempt for choice in run.answer.manifest.chosen} == {1}
    assert sum(pa.Table.from_batches(run.batches())["n"].to_pylist()) == FILES * ROWS


def test_the_first_attempt_of_a_try_lies_above_those_of_the_tries_that_failed(
    totals: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, _ = totals
    schema = pa.schema([("k", pa.int64())])
    request = ShuffleRequest(partitioner=RoundRobinPartitioner(1), plan="rows")
    stage = map_stage(workspace, QueryId(9), schema, request)
    rows = pa.record_batch({"k": [1, 2]}, schema=schema)

    table = pa.Table.from_batches([write_rows(stage, TaskTry(4, 2), iter([rows]))])

    (result,) = finished_results(table)
    assert (result.index.id, result.index.rows) == (AttemptId.of(9, 0, 4, 3), 2)


def test_an_error_of_the_runner_ends_the_query(totals: tuple[ShuffleWorkspace, Dataset]) -> None:
    workspace, query = totals

    class Broken(HereRunner):
        def run(self, *_: object, **__: object) -> pa.Table:
            raise TaskFailed("no task runs here\n  to fix: none")

    with pytest.raises(TaskFailed, match="no task runs here"):
        start(workspace, query, Broken())


def test_running_stages_imports_no_pyspark() -> None:
    text = (
        "import sys, millrace.execute.query_run, millrace.execute.shuffle_requests, "
        "millrace.execute.explain_query, millrace.execute.results.parquet_results\n"
        "assert 'pyspark' not in sys.modules, 'pyspark was imported'"
    )

    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)

    assert ended.returncode == 0, ended.stderr.decode()
