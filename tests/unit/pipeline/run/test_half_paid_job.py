"""A job that an earlier version left half paid: it goes on, and pays for nothing twice.

`half-paid.tar.xz` was made before records of calls moved to journals of other names. A job had paid
for the 25 rows of `in/1`, one publish of four after the other, and for 12 of the 15 rows of `in/0`,
of which 8 were published, when its process was killed in the last call. `calls.log` has a line for
each call. The budget was 39 calls.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_run import run_job
from millrace.pipeline.run.job_status import job_status
from millrace.workspace import runtime_of

ARCHIVE = Path(__file__).parents[3] / "formats" / "half-paid.tar.xz"
CALLS_BEFORE, BUDGET = 37, 39
IN_DOUBT = {9, 10, 11, 12}
ROWS = range(1, 41)


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with mr.open(tmp_path / "mill", create=False, config=mr.Config(sync=False)) as opened:
        yield opened


def pay(log: Path, row: dict[str, Any]) -> dict[str, Any]:
    with log.open("a") as lines:
        lines.write(f"{row['x']}\n")
    return {"x": row["x"], "y": -row["x"]}


def paid(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in (folder / "calls.log").read_text().split())


def run(ws: mr.Workspace, folder: Path, budget: int) -> JobReport:
    job = ws.job("captions")
    rows = job.source("rows", journals="in")
    step = rows.map(
        "pay",
        partial(pay, folder / "calls.log"),
        schema="x bigint, y bigint",
        expensive=True,
        batch_rows=4,
        max_calls=budget,
        version="1",
    )
    step.sink_journal("out")
    broker = broker_of(ws.journals)
    return run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker, folder / "scratch"))


def published(ws: mr.Workspace) -> list[int]:
    return sorted(row["x"] for row in ws.journals.read("out", 0).rows().to_pylist())


def test_it_goes_on_within_its_budget_and_pays_for_no_published_row_again(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    assert paid(tmp_path).total() == CALLS_BEFORE
    assert job_status(broker_of(ws.journals), "captions").step("pay").calls == CALLS_BEFORE

    within = run(ws, tmp_path, BUDGET)
    assert (within.state, within.step("pay").calls) == ("spent", BUDGET)
    assert paid(tmp_path).total() == BUDGET, "all of the budget, and no call more"

    assert run(ws, tmp_path, BUDGET + 10).state == "finished"
    assert published(ws) == [*ROWS]
    assert {row for row, calls in paid(tmp_path).items() if calls > 1} <= IN_DOUBT
    status = job_status(broker_of(ws.journals), "captions").step("pay")
    assert (status.calls, status.in_doubt, status.backlog) == (paid(tmp_path).total(), 4, 0)


def test_a_later_budget_counts_the_calls_of_both_versions_once(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    run(ws, tmp_path, 1000)
    made = paid(tmp_path).total()
    ws.journals.append("in/0", pa.table({"x": [41, 42]}))

    assert run(ws, tmp_path, made + 1).state == "spent"
    assert paid(tmp_path).total() == made + 1
