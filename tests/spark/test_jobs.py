"""Jobs on Spark: what comes out, what is called, and what is told about it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.job_kit import (
    CONFIG,
    DEADLY,
    TEXTS,
    calls,
    caption,
    happened,
    ids,
    rows_in,
    written,
)

import millrace as mr
from millrace.errors import LeaseHeld, StepFailed
from millrace.pipeline.core import dead_letters, hops
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.run.job_status import job_status
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
ROWS = 60


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as opened:
        yield opened


@pytest.fixture
def deadly_ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=DEADLY) as opened:
        yield opened


def videos(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    return spark.range(rows).selectExpr("id", "concat('u', id) AS url")


def test_each_row_is_called_for_once_and_comes_out_once(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    def job() -> mr.Job:
        job = ws.job("captions")
        made = job.source("videos", videos(spark)).map(
            "caption", caption(tmp_path / "log"), schema=TEXTS, expensive=True
        )
        made.filter("id >= 5").sink_parquet(tmp_path / "out", name="out")
        return job

    report = job().run()

    assert ids(tmp_path / "out") == list(range(5, ROWS))
    assert written(tmp_path / "out")["text"][0].as_py() == "text of u5"
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    step, out = report.step("caption"), report.step("out")
    assert (step.rows_in, step.rows_out, step.calls, step.calls_now) == (ROWS, ROWS, ROWS, ROWS)
    assert (step.reused, step.in_doubt, step.errors) == (0, 0, 0)
    assert (out.rows_in, out.rows_out) == (ROWS, ROWS - 5)
    assert (report.state, report.run) == ("finished", 1)
    assert step.in_function is not None
    recorded = ws.system.table("events", job="captions").filter(pc.field("event") == "ended")
    assert json.loads(recorded["detail"][0].as_py())["report"]["samples"]

    again = job().run()

    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    assert ids(tmp_path / "out") == list(range(5, ROWS))
    step = again.step("caption")
    assert (step.calls, step.calls_now, step.reused) == (ROWS, 0, ROWS)
    assert [run.state for run in again.runs] == ["finished", "finished"]
    status = job().status()
    assert (status.state, status.holder, status.caught_up) == ("finished", None, True)
    assert json.loads(again.to_json())["steps"][0]["calls"] == ROWS


def test_more_steps_than_slots_come_to_their_end(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    job = ws.job("steps")
    made = job.source("videos", videos(spark), partitions=3).map(
        "caption", caption(tmp_path / "log"), schema=TEXTS, expensive=True
    )
    kept = made.filter("id % 3 > 0").map("kept", lambda row: row, schema=TEXTS, durable=True)
    keyed = kept.key_by("text", partitions=2)
    keyed.sink_parquet(tmp_path / "out", name="out")
    made.sink_journal("acme/captions", name="all")

    report = job.run()

    assert ids(tmp_path / "out") == [n for n in range(ROWS) if n % 3]
    appended = ws.journals.read("acme/captions", 0).rows()
    assert sorted(appended["id"].to_pylist()) == list(range(ROWS))
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    counts = {step.name: (step.rows_in, step.rows_out) for step in report.steps}
    assert counts == {
        "caption": (ROWS, ROWS),
        "kept": (ROWS, 40),
        "key_by": (40, 40),
        "out": (40, 40),
        "all": (ROWS, None),
    }
    # Rows of cheap steps are removed once they are read; expensive ones and sources stay.
    assert sum(rows_in(ws, "steps", "kept").values()) == 0
    assert sum(rows_in(ws, "steps", "key_by").values()) == 0
    assert sum(rows_in(ws, "steps", "caption").values()) == ROWS
    assert rows_in(ws, "steps", "videos") == {"0": 20, "1": 20, "2": 20}
    later = {step.name: (step.rows_in, step.rows_out) for step in job.status().steps}
    assert later == counts


def test_a_row_that_its_function_refuses_goes_to_the_dead_letters(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    def picky(row: dict) -> dict:  # type: ignore[type-arg]
        if row["id"] == 7:
            raise ValueError("no sevens")
        return {"id": row["id"], "text": ""}

    job = ws.job("picky")
    made = job.source("videos", videos(spark)).map(
        "pick", picky, schema=TEXTS, expensive=True, on_error="dead_letter", retries=0
    )
    made.sink_parquet(tmp_path / "out")

    report = job.run()

    assert ids(tmp_path / "out") == [n for n in range(ROWS) if n != 7]
    (letter,) = ws.journals.read(hops.dead_letters("picky", "pick"), 0).rows().to_pylist()
    assert "no sevens" in letter["error"]
    assert "picky" in letter["traceback"]
    assert dead_letters.from_arrow(letter["row_arrow"])["id"].to_pylist() == [7]
    assert report.step("pick").dead_letters == 1
    assert report.state == "finished"


def test_a_step_that_gives_up_says_where_and_why_and_the_next_run_goes_on(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def job() -> mr.Job:
        note, flag = caption(tmp_path / "log"), os.fspath(broken)
        note_raised = caption(tmp_path / "raised")

        def shaky(row: dict) -> dict:  # type: ignore[type-arg]
            if row["id"] == 41 and os.path.exists(flag):
                note_raised(row)
                raise ConnectionError("the service is down")
            return note(row)

        job = ws.job("shaky")
        made = job.source("videos", videos(spark)).map(
            "call", shaky, schema=TEXTS, expensive=True, batch_rows=1, retries=1, version="1"
        )
        made.sink_parquet(tmp_path / "out")
        return job

    with pytest.raises(StepFailed) as failed:
        job().run()

    text = str(failed.value)
    assert "step 'call' of job 'shaky' gave up" in text
    assert "the service is down" in text
    assert "in shaky" in text, "the traceback"
    assert "jobs/shaky/videos/out/" in text
    assert "on_error='dead_letter'" in text
    assert job().status().state == "failed"
    done = calls(tmp_path / "log")
    broken.unlink()
    report = job().run()
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    assert report.step("call").reused == len(done)
    # Once, and once more as asked, and by no other worker.
    assert calls(tmp_path / "raised").total() == report.step("call").errors == 2
    assert report.step("call").calls == ROWS + 2
    assert [run.state for run in report.runs] == ["failed", "finished"]


def test_a_budget_stops_the_job_and_a_higher_one_lets_it_go_on(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    def job(max_calls: int) -> mr.Job:
        job = ws.job("budget")
        made = job.source("videos", videos(spark)).map(
            "call", caption(tmp_path / "log"), schema=TEXTS, expensive=True, max_calls=max_calls
        )
        made.sink_parquet(tmp_path / "out")
        return job

    report = job(25).run()

    assert report.state == "spent"
    assert "higher budget" in str(report)
    assert report.step("call").calls == sum(calls(tmp_path / "log").values()) <= 25
    assert set(ids(tmp_path / "out")) == set(calls(tmp_path / "log")), "what was paid for is out"
    assert job(100).run().state == "finished"
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    assert ids(tmp_path / "out") == list(range(ROWS))


def test_a_worker_process_that_is_killed_leaves_one_call_in_doubt(
    deadly_ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    note, marker = caption(tmp_path / "log"), os.fspath(tmp_path / "killed")

    def deadly(row: dict) -> dict:  # type: ignore[type-arg]
        made = note(row)
        if row["id"] == 30 and not os.path.exists(marker):
            with open(marker, "x"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    job = deadly_ws.job("deadly")
    made = job.source("videos", videos(spark)).map(
        "call", deadly, schema=TEXTS, expensive=True, batch_rows=4, version="1"
    )
    made.sink_parquet(tmp_path / "out")

    report = job.run()

    assert ids(tmp_path / "out") == list(range(ROWS))
    step, made_calls = report.step("call"), calls(tmp_path / "log")
    assert set(made_calls) == set(range(ROWS))
    assert step.in_doubt == 1
    assert made_calls == {row: 1 + (row == 30) for row in range(ROWS)}


def test_a_journal_is_read_up_to_where_it_ended_when_the_run_began(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("url", pa.string())])
    broker = ws.journals
    broker.create("acme/videos", schema)

    def add(*numbers: int) -> None:
        broker.append("acme/videos", pa.table({"id": numbers, "url": ["u"] * len(numbers)}, schema))

    add(*range(20))
    made = caption(tmp_path / "log")
    path = os.fspath(tmp_path / "log")
    grown = threading.Event()

    def grow() -> None:
        while not os.path.exists(path):
            time.sleep(0.01)
        add(*range(20, 25))
        grown.set()

    thread = threading.Thread(target=grow)
    thread.start()

    def job() -> mr.Job:
        job = ws.job("growing")
        rows = job.source("videos", journal="acme/videos")
        rows.map("call", made, schema=TEXTS, expensive=True, batch_rows=2).sink_parquet(
            tmp_path / "out"
        )
        return job

    job().run()

    thread.join()
    assert grown.is_set()
    assert ids(tmp_path / "out") == list(range(20))
    report = job().run()
    assert ids(tmp_path / "out") == list(range(25))
    assert report.step("call").reused == 20


def test_a_job_that_somebody_runs_is_not_run_twice(
    deadly_ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    broker = runtime_of(deadly_ws).joined_broker()
    job = deadly_ws.job("held")
    job.source("videos", videos(spark)).sink_parquet(tmp_path / "out")
    lease = broker.acquire(hops.run_lease("held"), "ann on host7", lease_ms=60_000)
    renewing = threading.Event()

    def renew() -> None:
        while not renewing.wait(0.05):
            broker.renew(lease, lease_ms=60_000)

    thread = threading.Thread(target=renew)
    thread.start()

    with pytest.raises(LeaseHeld, match="run by: ann on host7"):
        job.run()
    renewing.set()
    thread.join()
    broker.release(lease)
    assert job.run().state == "finished"


def test_a_run_waits_for_the_lease_of_one_that_was_killed(
    deadly_ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    job = deadly_ws.job("taken")
    job.source("videos", videos(spark)).sink_parquet(tmp_path / "out")
    runtime_of(deadly_ws).joined_broker().acquire(hops.run_lease("taken"), "dead", lease_ms=1_500)

    assert job.run().state == "finished"
    assert ids(tmp_path / "out") == list(range(ROWS))


def test_a_step_that_was_set_back_is_done_again_from_what_is_kept(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    def job() -> mr.Job:
        job = ws.job("reset")
        made = job.source("videos", videos(spark)).map(
            "call", caption(tmp_path / "log"), schema=TEXTS, expensive=True
        )
        made.sink_parquet(tmp_path / "out", name="out")
        return job

    job().run()
    before = sorted(path.name for path in (tmp_path / "out").glob("*.parquet"))

    assert job().reset("out") == ("out",)
    assert list((tmp_path / "out").glob("*.parquet")) == []
    job().run()
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 1)
    assert job().reset("call") == ("call", "out")
    job().run()
    assert ids(tmp_path / "out") == list(range(ROWS))
    assert calls(tmp_path / "log") == dict.fromkeys(range(ROWS), 2)
    assert before
    assert len(happened(ws, "reset", JobEventKind.TAKEN_IN)) == 1
    assert job_status(runtime_of(ws).joined_broker(), "reset").step("call").calls == ROWS


def test_the_saved_rows_of_a_step_are_a_dataframe(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    job = ws.job("frames")
    source = job.source("videos", videos(spark))
    called = source.map("call", caption(tmp_path / "log"), schema=TEXTS, expensive=True)
    called.sink_parquet(tmp_path / "out", name="out")
    job.run()

    assert called.to_spark().columns == called.columns
    assert sorted(row.id for row in called.to_spark().collect()) == list(range(ROWS))
    assert source.to_spark().count() == ROWS
