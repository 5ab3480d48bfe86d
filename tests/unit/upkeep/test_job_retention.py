"""Retention of jobs: rows that all steps have read go, and what the job has done stays done."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime
from tests.unit.upkeep.test_retention import CONFIG, DAY_MS, KILLED, PROGRAM, QUIET, until

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.core import hops
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_run import run_job
from millrace.testing.fault_injection import armed
from millrace.upkeep.retention_pass import carry_out
from millrace.workspace import Workspace, runtime_of

SHAPE = "x bigint, blob binary"


def load(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "blob": bytes([row["x"]]) * 5000}


def size(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "n": len(row["blob"].read())}


def run(ws: Workspace, scratch: Path) -> JobReport:
    """A job with a source that it saves, a paid step with large values, and a step behind it."""
    job = ws.job("films")
    rows = job.source("rows", journal="in")
    loaded = rows.map("load", load, schema=SHAPE, large=["blob"], expensive=True, version="1")
    measured = loaded.map("size", size, schema="x bigint, n bigint", expensive=True, version="1")
    measured.sink_journal("out")
    runtime = runtime_of(ws)
    return run_job(runtime, job, lambda: ThreadRuntime(broker_of(ws.journals), scratch))


def feed(ws: Workspace, *values: int) -> None:
    if not ws.journals.list("in"):
        ws.journals.create("in", pa.schema([("x", pa.int64())]))
    ws.journals.append("in", pa.table({"x": list(values)}))


def pass_after(ws: Workspace, days: float) -> dict[str, int]:
    """The rows that a pass removes so many days from now, by job."""
    retained = runtime_of(ws).care.retained(broker_of(ws.journals))
    later_ms = time.time_ns() // 1_000_000 + int(days * DAY_MS)
    return carry_out(replace(retained, now_ms=lambda: later_ms)).jobs


def outputs(ws: Workspace) -> list[tuple[int, int]]:
    found = ws.journals.read("out", 0).rows().to_pylist()
    return sorted((row["x"], row["n"]) for row in found)


def first_offsets(ws: Workspace) -> list[int]:
    """Where the outputs of the first step begin, of those that have had rows."""
    made = [info.name for info in ws.journals.list(hops.output_prefix("films", "load"))]
    return [ws.journals.start_offset(name) for name in made if ws.journals.end_offset(name)]


def values(mill: Path) -> list[Path]:
    return [path for path in (mill / "large").rglob("*") if path.is_file()]


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    keep = mr.Retention(jobs={"films": "7d"})
    config = QUIET.with_options(unfinished_grace="1ms")
    with mr.open(tmp_path / "mill", retention=keep, config=config) as made:
        feed(made, 1, 2, 3)
        yield made


def test_rows_that_all_steps_have_read_go_when_they_are_old(ws: Workspace, tmp_path: Path) -> None:
    run(ws, tmp_path)
    assert len(values(tmp_path / "mill")) == 3
    assert pass_after(ws, 6.9) == {}
    assert len(values(tmp_path / "mill")) == 3

    assert pass_after(ws, 7.1) == {"films": 6}, "three of each step"
    assert values(tmp_path / "mill") == []
    assert pass_after(ws, 7.1) == {}
    assert ws.journals.start_offset("in") == 0, "the user's own journal is not the job's"

    # What is done stays done: the next run pays for new rows alone.
    feed(ws, 4)
    assert run(ws, tmp_path).step("load").calls_now == 1
    assert outputs(ws) == [(x, 5000) for x in (1, 2, 3, 4)]


def test_a_job_without_a_rule_keeps_its_rows(ws: Workspace, tmp_path: Path) -> None:
    run(ws, tmp_path)
    retained = runtime_of(ws).care.retained(broker_of(ws.journals))
    other = replace(retained.rules, jobs=(("another", 1),))
    assert carry_out(replace(retained, rules=other)).jobs == {}
    assert len(values(tmp_path / "mill")) == 3


def test_a_pass_that_is_killed_at_a_job_leaves_it_whole(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    with mr.open(mill, retention=mr.Retention(jobs="1ms"), config=QUIET) as ws:
        feed(ws, 1, 2)
        run(ws, tmp_path)

    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(mill)],
        env=armed("retention.before_job"),
        check=False,
        timeout=120,
    )

    assert killed.returncode == KILLED
    with mr.open(mill, config=QUIET) as ws:
        assert ws.verify().problems == ()
        assert first_offsets(ws) == [0]
        assert outputs(ws) == [(1, 5000), (2, 5000)]
    with mr.open(mill, config=CONFIG) as ws:
        until(lambda: first_offsets(ws) == [2])
        feed(ws, 3)
        run(ws, tmp_path)
        assert outputs(ws) == [(x, 5000) for x in (1, 2, 3)]
