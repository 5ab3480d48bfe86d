"""A sample of a job's paid calls, and what the rest is said to cost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    Bench,
    fill,
    function_sink,
    hop,
    map_step,
    output,
    totals,
)

from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.define.context import Context
from millrace.pipeline.paid.limits_and_budget import Budget
from millrace.pipeline.report.job_counts import Counting
from millrace.pipeline.report.job_estimate import JobEstimate, Range, StepEstimate
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.run.job_status import estimate_job, step_reports

ROWS = 400


def pay(row: dict[str, Any], context: Context) -> dict[str, Any]:
    chance = random.Random(row["x"])  # noqa: S311 - the same for each row
    context.spend(tokens_in=chance.randint(50, 150), usd=chance.uniform(0.01, 0.03))
    return row


def paying_hop() -> Hop:
    return hop(map_step("pay", pay, context=True, expensive=True, concurrency=4))


def reported(bench: Bench) -> JobReport:
    part = JobPart(
        name="pay", kind="map", inputs=("src",), prefixes=bench.hops[0].inputs, expensive=True
    )
    record = JobRecord(JOB, (JobPart(name="src", kind="DataFrame"), part))
    counted = Counting(bench.broker, record).count()
    steps = step_reports(record, counted, None, seconds=1.0)
    return JobReport(
        job=JOB, run=1, state="spent", seconds=1.0, record=record, steps=steps, runs=()
    )


def test_a_sample_stays_done_and_holds_what_the_rest_costs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [paying_hop().sampled(60)])
    fill(bench.broker, range(ROWS))
    bench.run()
    spent = totals(bench.broker, "pay")
    assert spent.calls == 60

    estimate = estimate_job(bench.broker, reported(bench), bench.hops)
    bench.again(hops=[paying_hop()]).run()

    step = estimate.step("pay")
    assert (step.rows_sampled, step.rows_left) == (60, ROWS - 60)
    whole = totals(bench.broker, "pay")
    assert whole.calls == ROWS == len(output(bench.broker, "pay"))
    assert step.usd.low < whole.spend.usd - spent.spend.usd < step.usd.high
    assert step.tokens.low < whole.spend.tokens - spent.spend.tokens < step.tokens.high
    assert step.usd.high - step.usd.low < 0.3 * step.usd.mean
    assert str(estimate).startswith("pay: 340 rows left, after 60: about $6.")


def test_a_sample_is_at_most_the_budget_and_counts_rows_of_batches() -> None:
    def budget_of(made: Hop) -> Budget | None:
        return made.options.budget

    own = hop(map_step("f", pay, context=True, expensive=True, budget=Budget(calls=5, usd=9.0)))
    cheap = hop(map_step("f", pay, context=True))
    batch = hop(map_step("f", pay, context=True, expensive=True, rows="batch", batch_rows=50))
    sink = hop(sink=function_sink("s", pay, context=True))

    assert budget_of(own.sampled(100)) == Budget(calls=5, usd=9.0)
    assert budget_of(own.sampled(3)) == Budget(calls=3, usd=9.0)
    assert cheap.sampled(100) is cheap
    assert budget_of(batch.sampled(100)) == Budget(calls=2)
    assert budget_of(sink.sampled(7)) == Budget(calls=7)


@given(st.integers(0, 10**9), st.floats(0, 1e9))
def test_any_estimate_is_a_line(rows: int, seconds: float) -> None:
    amount = Range(0.0, 1.0, 2.0)
    times = Range(0.0, seconds / 2, seconds)
    step = StepEstimate(
        name="f", rows_sampled=1, rows_left=rows, tokens=amount, usd=amount, seconds=times
    )

    report = JobReport(
        job="j", run=1, state="spent", seconds=1.0, record=JobRecord("j"), steps=(), runs=()
    )
    text = str(JobEstimate(steps=(step,), report=report))

    assert len(text.splitlines()) == 1
    assert f"{rows:,} rows left" in text


def test_a_job_without_paid_calls_says_so() -> None:
    report = JobReport(
        job="j", run=1, state="finished", seconds=1.0, record=JobRecord("j"), steps=(), runs=()
    )
    assert str(estimate_job(MemoryBroker(), report, [])) == "no step has paid calls"
