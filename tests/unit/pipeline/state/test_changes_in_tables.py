"""Changes of a job in a Delta table: rows that go, go there too. delta-rs reads the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime
from tests.unit.pipeline.state.state_kit import asked

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_run import run_job
from millrace.workspace import runtime_of

CONFIG = mr.Config().with_options(job_idle_ms=2, job_watch_ms=2, journal_read_rows_max=50)
ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("v", pa.int64())])


def run(ws: mr.Workspace, job: mr.Job, scratch: Path) -> JobReport:
    broker = broker_of(ws.journals)
    return run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker, scratch))


def rows_of(seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table([chance.integers(0, most, 200) for most in (12, 40, 9)], schema=ROWS)


def test_groups_that_have_no_rows_any_more_are_gone_from_the_table(tmp_path: Path) -> None:
    ws = mr.open(tmp_path / "mill", create=True, config=CONFIG)
    ws.journals.create("in", ROWS)
    table = tmp_path / "table"
    parts = [rows_of(seed) for seed in (1, 2)]
    for part in parts:
        ws.journals.append("in", part)
        job = ws.job("groups")
        source = job.source("rows", journal="in")
        last = source.key_by("id", partitions=1).latest("last", emit="retractions")
        groups = last.key_by("part", partitions=1).aggregate("groups", n="count(*)", v="sum(v)")
        groups.sink_delta(table, "out", keys="part")
        assert run(ws, job, tmp_path).state == "finished"

    numbered = pa.concat_tables(parts).append_column("n", pa.array(range(400)))
    last_rows = "SELECT id, arg_max(part, n) AS part, arg_max(v, n) AS v FROM rows GROUP BY 1"
    sql = f"SELECT part, count(*), CAST(sum(v) AS BIGINT) FROM ({last_rows}) GROUP BY 1"
    found = DeltaTable(str(table)).to_pyarrow_table()
    assert found.column_names == ["part", "n", "v"]
    assert {tuple(row.values()) for row in found.to_pylist()} == asked(sql, rows=numbered)
    assert found.num_rows <= 12
