"""Jobs of a real workspace, as far as they need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, same

import millrace as mr
from millrace.errors import UserError
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_journals import check_whole, ensure_journals
from millrace.pipeline.run.run_start import recall_kept
from millrace.workspace import runtime_of


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", broker="memory") as workspace:
        yield workspace


def captions(ws: mr.Workspace, condition: str = "score > 0.5") -> mr.Job:
    """A job over a journal."""
    job = ws.job("captions")
    calls = job.source("orders", journal="acme/orders").map(
        "call", same, schema=VIDEOS, expensive=True
    )
    calls.filter(condition).sink_journal("good", name="good")
    return job


def test_a_job_reads_the_columns_of_journals_and_datasets(ws: mr.Workspace) -> None:
    ws.journals.create("acme/orders", VIDEOS)
    job = ws.job("captions")

    assert job.source("a", journal="acme/orders").schema == VIDEOS
    assert job.source("b", journals="acme/").schema == VIDEOS
    assert job.source("c", ws.from_arrow(VIDEOS.empty_table())).schema == VIDEOS
    with pytest.raises(UserError, match="there are no journal 'acme/none'"):
        job.source("d", journal="acme/none")
    with pytest.raises(UserError, match=r"of a Table\n(.|\n)*ws.from_arrow\(table\)"):
        job.source("d", pa.table({"a": [1]}))
    assert isinstance(job, mr.Job)


def test_a_job_that_never_ran_is_explained_and_has_no_status(ws: mr.Workspace) -> None:
    ws.journals.create("acme/orders", VIDEOS)
    job = captions(ws)

    assert str(job.explain()).splitlines() == [
        "job captions: 1 source, 2 hops",
        "source orders: journals acme/orders",
        "  columns id, url, score",
        "hop call -> jobs/captions/call/out, 4 partitions",
        "  map call with same, for each row (calls recorded)",
        "    read orders",
        "hop good -> journal good",
        "  sink_journal good",
        "  filter: score > 0.5 (fused)",
        "    read call",
    ]
    with pytest.raises(UserError, match="there is no job 'captions' in this workspace"):
        job.status()


def test_a_job_that_ran_is_explained_with_what_is_done_and_what_changed(ws: mr.Workspace) -> None:
    ws.journals.create("acme/orders", VIDEOS)
    rows = pa.table({"id": [1, 2, 3], "url": ["a"] * 3, "score": [0.1] * 3}, schema=VIDEOS)
    ws.journals.append("acme/orders", rows)
    job = captions(ws)
    history = RunHistory.begin(runtime_of(ws).joined_broker(), job.name)
    ensure_journals(runtime_of(ws).joined_broker(), job._graph.hops)
    detail = {RECORDED: job._graph.record().to_json()}
    history.add(JobEvent(at_us=1, run=1, happened=JobEventKind.STARTED, detail=detail))
    ws.journals.commit("jobs/captions/call", "acme/orders", 2, expected=0)

    same_job, other_job = captions(ws).explain(), captions(ws, "score > 0.9").explain()

    assert "  done: 2 rows, 0 calls made, 1 row to do" in same_job.splitlines()
    assert "  done: 0 rows" in same_job.splitlines()
    assert "  done: 0 rows, changed since: see on_change" in other_job.splitlines()
    assert job.status().job == "captions"


def test_a_new_step_does_not_miss_rows_that_are_gone(ws: mr.Workspace) -> None:
    def job(*, more: bool) -> mr.Job:
        made = ws.job("captions")
        read = made.source("orders", journal="acme/orders")
        kept = read.map("kept", same, schema=VIDEOS, durable=True, partitions=1)
        kept.sink_journal("good", name="good")
        if more:
            kept.sink_journal("more", name="more")
        return made

    ws.journals.create("acme/orders", VIDEOS)
    ensure_journals(runtime_of(ws).joined_broker(), job(more=False)._graph.hops)
    rows = pa.table({"id": [1, 2], "url": ["a"] * 2, "score": [0.1] * 2}, schema=VIDEOS)
    ws.journals.append("jobs/captions/kept/out/0", rows)
    check_whole(runtime_of(ws).joined_broker(), job(more=True)._graph.hops)
    ws.journals.commit("jobs/captions/good", "jobs/captions/kept/out/0", 1, expected=0)
    runtime_of(ws).joined_broker().truncate_committed("jobs/captions/kept/out/0")

    check_whole(runtime_of(ws).joined_broker(), job(more=False)._graph.hops)
    with pytest.raises(
        UserError, match=r"step 'more' (.|\n)* job.reset\('kept'\) makes them again"
    ):
        check_whole(runtime_of(ws).joined_broker(), job(more=True)._graph.hops)


def test_a_job_may_be_the_first_that_a_workspace_sees(tmp_path: Path) -> None:
    """The run makes the workspace; what was kept in earlier runs is looked for before that."""
    with mr.open(tmp_path / "not yet there") as opened:
        graph = opened.job("captions")._graph
        recall_kept(runtime_of(opened).joined_broker(), graph)

    assert graph.kept_before == frozenset()
    assert not (tmp_path / "not yet there").exists()
