"""Round trips of a whole job in front of a bucket: how many are made one after the other.

The log of decisions is written by one put at a time, so its puts are the round trips that a job
waits for. What else is asked is asked beside them, or once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.s3.s3_kit import Proxy, Server, credentials
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.run.job_run import run_job
from millrace.spark.spark_job_runtime import SparkIntake
from millrace.workspace import runtime_of

# No lease is renewed meanwhile: the test counts, and does not measure time.
CONFIG = mr.Config(job_run_lease=600, job_lease=600, job_turn_ms=60_000).with_options(
    job_ahead_ms=1
)
FILES, PARTITIONS = 12, 4
PER_UNIT = FILES // PARTITIONS
BEFORE_MAX, AFTER_MAX = 10, 17
"""Without work that is done beside other work there were 12 and 20."""
CALLS: list[int] = []
"""How many puts there were before each call."""
PROXIES: list[Proxy] = []
"""Of the test that runs: the function of the job cannot be given it."""


def log_puts() -> int:
    return sum(bool(re.match(r"PUT .*/journals/log/", asked)) for asked in PROXIES[0].asked)


def pay(row: dict[str, Any]) -> dict[str, Any]:
    CALLS.append(log_puts())
    return {"size": row["size"]}


def run(ws: mr.Workspace, given: Path, out: Path) -> mr.JobReport:
    job = ws.job("paid")
    files = job.source("files", mr.files(str(given)), partitions=PARTITIONS)
    files.map("pay", pay, schema="size bigint", expensive=True, batch_rows=1).sink_parquet(out)

    def runtime() -> ThreadRuntime:
        made = ThreadRuntime(broker_of(ws.journals), out.parent)
        made.intake = SparkIntake()
        return made

    return run_job(runtime_of(ws), job, runtime)


def test_a_job_waits_for_few_round_trips_before_its_first_call_and_after_its_last(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "in"
    given.mkdir()
    for number in range(FILES):
        (given / f"{number}").write_text("x" * number)
    CALLS.clear()
    with Proxy(server.port, delay_s=lambda: 0.05).running() as proxy:
        PROXIES[:] = [proxy]
        for name, value in credentials(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        with mr.open(url, config=CONFIG) as ws:
            ws.journals.create("other", pa.schema([("x", pa.int64())]))
            begun, asked_before = log_puts(), len(proxy.asked)
            first = run(ws, given, tmp_path / "out")
            ended = log_puts()
            asked = list(proxy.asked)
            again = run(ws, given, tmp_path / "out")
            over = log_puts()
            asked_again = len(proxy.asked) - len(asked)

    assert first.step("pay").calls == again.step("pay").calls == FILES
    calls = [puts - begun for puts in CALLS]
    # Before: the lease beside the journals of records, the start of the run, journals and first
    # offsets, the rows of the source, the lease of a partition, its first intent.
    assert calls[0] <= BEFORE_MAX
    # Within a partition at most one put for each call.
    assert max(calls[n + 1] - calls[n] for n in range(0, FILES, PER_UNIT)) <= 1
    # After: the results, a lease and a file of the sink for each partition, the end.
    assert ended - begun - calls[-1] <= AFTER_MAX
    # A run that finds nothing to do: its lease, its start, its end, the lease given back.
    assert over - ended == 4
    # All requests of the whole job, and of a run that finds nothing to do.
    assert len(asked) - asked_before <= 70
    assert asked_again <= 8
    # An object that was just put is not looked at before it is adopted.
    assert [each for each in asked if each.startswith("HEAD") and "/adopted/" in each] == []
