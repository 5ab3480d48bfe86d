"""The time of a run is one value for all its tasks, and no later run reuses it as its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, NoFrames

import millrace as mr
from millrace.engine.run_values import OF_THIS_DAY, OF_THIS_RUN, RunMoment
from millrace.errors import TaskFailed
from millrace.execute import query_run
from millrace.execute.explain_query import forecast_reuse
from millrace.execute.query_run import QueryRun
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import stages_of
from millrace.execute.task_folders import Folders
from millrace.plan.nodes.node import Node
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

NOON = int(datetime(2024, 2, 29, 12, tzinfo=UTC).timestamp()) * 1_000_000
HOUR = 3_600_000_000
FILES = 3


class Clock:
    """The time at which runs begin."""

    def __init__(self) -> None:
        self.micros = NOON

    def now(self) -> RunMoment:
        return RunMoment(micros=self.micros)


class Queries:
    """Queries over a folder of files with a text `t`, each run by tasks of this process."""

    def __init__(self, ws: mr.Workspace, workspace: ShuffleWorkspace, files: Path) -> None:
        self.ws, self.workspace, self.files = ws, workspace, files

    def plan(self, *columns: str, where: str = "true") -> Node:
        rows = self.ws.read_parquet(self.files)
        return rows.filter(where).select(*columns)._plan

    def run(self, *columns: str, where: str = "true", zone: str = "UTC") -> QueryRun:
        plan = self.plan(*columns, where=where)
        run = QueryRun(HereRunner(), self.workspace, NoFrames(plan), zone=zone)
        run.finish()
        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(query_run, "moment_of_now", clock.now)
    return clock


@pytest.fixture
def queries(tmp_path: Path, clock: Clock) -> Iterator[Queries]:
    del clock
    files = tmp_path / "files"
    for number in range(FILES):
        folder = files / f"day=2024-02-{27 + number}"
        folder.mkdir(parents=True)
        texts = [f"2024-01-01 0{number}:00:00", "12:30" if number == 1 else None]
        pq.write_table(pa.table({"id": [number, number], "t": texts}), folder / "a.parquet")
    config = mr.Config(one_task_bytes_max=1, split_bytes_target=1, sync=False)
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
        yield Queries(ws, workspace, files)


def values(run: QueryRun, column: str) -> list[Any]:
    rows: list[Any] = pa.Table.from_batches(run.batches()).column(column).to_pylist()
    return rows


def reused(run: QueryRun) -> int:
    return sum(report.reused for report in run.report.stages)


def test_all_tasks_have_one_time_and_the_next_run_has_its_own(
    queries: Queries, clock: Clock
) -> None:
    texts = ("id", "now() AS n", "current_timestamp AS c", "localtimestamp() AS l")
    first = queries.run(*texts, zone="Asia/Tokyo")
    clock.micros += 1
    second = queries.run(*texts, zone="Asia/Tokyo")

    began = datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert first.report.stages[0].map_tasks > 1
    assert set(values(first, "n")) == set(values(first, "c")) == {began}
    assert set(values(first, "l")) == {(began + timedelta(hours=9)).replace(tzinfo=None)}
    assert set(values(second, "n")) == {began + timedelta(microseconds=1)}
    assert reused(second) == 0
    assert OF_THIS_RUN in second.report.stages[0].reasons.values()


def test_the_day_of_the_run_is_reused_on_that_day_alone(queries: Queries, clock: Clock) -> None:
    texts = ("id", "date_add(current_date, 1) AS d", "curdate() AS c")
    first = queries.run(*texts)
    clock.micros += 11 * HOUR
    same_day = queries.run(*texts)
    clock.micros += HOUR
    next_day = queries.run(*texts)

    assert set(values(first, "d")) == {date(2024, 3, 1)}
    assert reused(same_day) == same_day.report.stages[0].map_tasks
    assert reused(next_day) == 0
    assert set(values(next_day, "c")) == {date(2024, 3, 1)}
    assert "day changed from 2024-02-29 to 2024-03-01" in str(next_day.report.stages[0].reasons)


def test_the_day_is_that_of_the_sessions_zone(queries: Queries, clock: Clock) -> None:
    clock.micros += 11 * HOUR
    run = queries.run("current_date() AS d", zone="Asia/Tokyo")
    assert set(values(run, "d")) == {date(2024, 3, 1)}


def test_the_day_of_the_run_chooses_folders(queries: Queries) -> None:
    run = queries.run("id", where="day >= date_sub(current_date, 1) AND upper(day) <> 'X'")
    assert sorted(values(run, "id")) == [1, 1, 2, 2]
    assert run.report.stages[0].map_tasks == 2


def test_explain_says_why_nothing_is_reused(queries: Queries) -> None:
    queries.run("now() AS n")
    workspace, moment = queries.workspace, RunMoment(micros=NOON)
    stages = stages_of(queries.plan("now() AS n"), workspace.config, "UTC", moment)
    lines = forecast_reuse(workspace, stages, "UTC", moment, {})
    assert OF_THIS_RUN in " ".join(lines.values())


def test_a_time_without_a_date_is_one_of_the_day_of_the_run(queries: Queries, clock: Clock) -> None:
    first = queries.run("id", "cast(t AS timestamp) AS at")
    clock.micros += 24 * HOUR
    second = queries.run("id", "cast(t AS timestamp) AS at")

    assert datetime(2024, 2, 29, 12, 30, tzinfo=UTC) in values(first, "at")
    assert datetime(2024, 3, 1, 12, 30, tzinfo=UTC) in values(second, "at")
    assert reused(second) == 0
    assert OF_THIS_DAY in second.report.stages[0].reasons.values()


def test_texts_with_dates_are_reused_on_every_day(queries: Queries, clock: Clock) -> None:
    where = "id <> 1"
    queries.run("cast(t AS timestamp) AS at", where=where)
    clock.micros += 24 * HOUR
    second = queries.run("cast(t AS timestamp) AS at", where=where)
    assert reused(second) == second.report.stages[0].map_tasks


def test_a_text_that_is_no_time_still_fails(queries: Queries) -> None:
    with pytest.raises(TaskFailed, match="cannot cast '2x"):
        queries.run("cast(concat('2x', t) AS timestamp) AS at")
