"""The size of a state, and its rows, as reports, metrics and SQL say them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from tests.unit.pipeline.state.state_kit import (
    ORDERS,
    STATE_CONFIG,
    TOTALS,
    bench,
    defined_hops,
    give,
    state_rows,
)
from tests.unit.pipeline.state.test_finished_sources import Shop, totals, tumbling
from tests.unit.pipeline.worker.worker_kit import JOB

from millrace.pipeline.core import hops
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.restore import local_states
from millrace.system.job_metrics import job_samples
from millrace.system.questions import SystemTables
from millrace.system.resting_workspace import RestingWorkspace


def test_reports_metrics_and_sql_say_how_large_a_state_is(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    report = shop.run(totals)

    kept = shop.ws.state("j/out").to_arrow().to_pylist()
    step = report.step("out")
    assert step.state_rows == len(kept) > 5
    assert step.state_bytes is not None
    assert step.state_bytes > 8 * len(kept)
    assert report.step("key_by").state_rows is None
    assert f"out remembers {len(kept)} rows, 0.0 MiB" in str(report)
    with RestingWorkspace.at(shop.ws.path) as resting:
        sql = "SELECT row FROM states WHERE job = 'j' AND step = 'out'"
        asked = SystemTables(resting).ask(sql).column("row").to_pylist()
        assert sorted(map(json.loads, asked), key=str) == sorted(kept, key=str)
        steps = SystemTables(resting).ask("SELECT state_rows FROM steps WHERE step = 'out'")
        assert steps.column(0).to_pylist() == [len(kept)]
        found = {(s.metric, s.labels): s.value for s in job_samples(resting)}
    assert found["millrace_step_state_rows", ("j", "out")] == len(kept)


def test_rows_that_a_step_left_out_are_a_metric(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.run(tumbling)
    shop.ws.journals.append("clicks/0", shop.rows["clicks"].slice(0, 5))
    shop.run(tumbling)

    with RestingWorkspace.at(shop.ws.path) as resting:
        found = {(s.metric, s.labels): s.value for s in job_samples(resting)}

    assert found["millrace_step_rows_skipped_total", ("j", "out")] == 5


def test_the_size_is_right_when_workers_take_turns(tmp_path: Path) -> None:
    made = defined_hops(
        ORDERS, lambda src: src.key_by("user", partitions=1).aggregate("out", "changes", **TOTALS)
    )
    job = bench(tmp_path, made, STATE_CONFIG)
    for users in (range(10), range(10), range(4, 13)):
        give(job.broker, pa.table([[*users], [1] * len(users)], schema=ORDERS))
        job.run()
        local_states._shelf.clear()

    size, _ = last_row(job.broker, hops.size_journal(JOB, "out", 0))

    assert size is not None
    assert size["rows"] == len(state_rows(job, "out")) == 13
