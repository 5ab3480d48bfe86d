"""Rows that a step with state leaves out are counted in its journals, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    bench,
    came_out,
    defined_hops,
    give,
    graph_hops,
    skipped_rows,
    state_rows,
)
from tests.unit.pipeline.state.test_windows import CLICKS, clicks
from tests.unit.pipeline.worker.worker_kit import JOB, Bench

from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.define.steps import Step
from millrace.pipeline.report.job_counts import Counting
from millrace.pipeline.state.skipped_rows import SkippedRows

SMALL = STATE_CONFIG.with_options(journal_read_rows_max=40)
SECOND = 1_000_000


def at(*seconds: int | None) -> pa.Table:
    """Rows of one user at these times."""
    times = [None if s is None else s * SECOND for s in seconds]
    stamps = pa.array(times, pa.int64()).cast(CLICKS.field("ts").type)
    count = len(seconds)
    return pa.table([[1] * count, stamps, [1] * count], schema=CLICKS)


def windows(late: str = "5 seconds", **more: Any) -> list[Hop]:  # noqa: ANN401 - of any option
    def define(source: Step) -> Step:
        by_user = source.key_by("user", partitions=2)
        return by_user.window("out", tumbling="1 minute", late=late, n="count(*)", **more)

    return defined_hops(CLICKS, define)


def counted(job: Bench, kind: str = "window") -> int:
    """What a report says, from the journals alone."""
    (hop,) = [each for each in job.hops if each.stateful is not None]
    part = JobPart(name=hop.name, kind=kind, prefixes=hop.inputs)
    parts = Counting(job.broker, JobRecord(JOB, (part,))).count().parts
    return parts[hop.name].skipped


def test_late_rows_are_counted_over_workers_and_runs(tmp_path: Path) -> None:
    rows = clicks(600, jitter_s=60)
    job = bench(tmp_path, windows(), SMALL)
    seen = 0
    for part in range(3):
        give(job.broker, rows.slice(part * 200, 200))
        job = job.again() if part else job
        seen += sum(outcome.skipped.get("out", 0) for outcome in job.run(workers=2))

    in_windows = sum(row["n"] for row in state_rows(job, "out"))
    closed = {r["window_start"]: r["n"] for r in came_out(job.broker, "out").to_pylist()}
    assert closed
    assert counted(job) == seen > 0
    assert skipped_rows(job, "out").late == seen
    assert in_windows + seen <= 600


def test_rows_without_a_time_and_rows_of_closed_windows_are_counted(tmp_path: Path) -> None:
    job = bench(tmp_path, windows(emit="close"), SMALL)
    journals = [hops.output_journal(JOB, "src", n) for n in (0, 1)]
    for journal in journals:
        job.broker.create(journal, CLICKS)
    job.broker.append(journals[0], at(0, 10, None, 600, 500))
    job.run()
    job = job.again()
    job.broker.append(journals[1], at(20, 590))

    job.run()

    # The second journal is in order: its first row is not late, but its window has closed.
    assert skipped_rows(job, "out") == SkippedRows(late=1, closed=1, without_time=1)
    assert counted(job) == 3


def test_a_row_counts_if_one_of_its_windows_is_open(tmp_path: Path) -> None:
    def define(source: Step) -> Step:
        by_user = source.key_by("user", partitions=1)
        spans = ("2 minutes", "1 minute")
        return by_user.window("out", sliding=spans, late="0s", emit="close", n="count(*)")

    job = bench(tmp_path, defined_hops(CLICKS, define), SMALL)
    journals = [hops.output_journal(JOB, "src", n) for n in (0, 1)]
    for journal in journals:
        job.broker.create(journal, CLICKS)
    job.broker.append(journals[0], at(0, 130))
    job.run()
    job = job.again()
    job.broker.append(journals[1], at(65, 200))

    job.run()

    # 00:00-02:00 has closed at 02:10; 01:00-03:00 has not, and gets the row of 01:05.
    assert skipped_rows(job, "out") == SkippedRows()
    assert {r["n"] for r in state_rows(job, "out")} == {1, 2}


def test_totals_that_do_not_count_any_more_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.pipeline.worker.state_turn.TOTALS_KEPT", 5)
    count = 60
    job = bench(tmp_path, windows(), SMALL.with_options(journal_read_rows_max=4, job_turn_ms=1))
    rows = at(*([10_000] * 2), *range(count))
    give(job.broker, rows, partitions=1)

    job.run()

    assert skipped_rows(job, "out").late == count
    (name,) = [
        info.name
        for info in job.broker.list(f"{hops.step_root(JOB, 'out')}/skipped")
        if job.broker.end_offset(info.name)
    ]
    kept = job.broker.read(name, job.broker.start_offset(name)).num_rows
    assert kept < 10


def test_null_keys_of_a_join_are_in_no_state(tmp_path: Path) -> None:
    left = pa.schema([("id", pa.int64()), ("a", pa.int64())])
    right = pa.schema([("id", pa.int64()), ("b", pa.int64())])
    made = graph_hops(
        {"l": left, "r": right}, lambda s: s[0].key_by("id").join("out", s[1].key_by("id"))
    )
    job = bench(tmp_path, made, SMALL)
    give(job.broker, pa.table([[1, None, None], [1, 2, 3]], schema=left), name="l")
    give(job.broker, pa.table([[1, None, 2], [1, 2, 3]], schema=right), name="r")

    job.run()

    assert came_out(job.broker, "out").to_pylist() == [{"id": 1, "a": 1, "b": 1}]
    assert len(state_rows(job, "out")) == 3
