"""A job that is killed, with workspace and sink in a bucket that fails now and then."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.s3.s3_kit import Server, credentials, store_at
from tests.stores.faulty_proxy import FAULTS, FaultyProxy
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime
from tests.unit.pipeline.worker.worker_kit import write_line

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.run.job_run import run_job
from millrace.workspace import runtime_of

SPAWN = multiprocessing.get_context("spawn")
KILLED = -signal.SIGKILL
ROWS = 16
WAIT_S = 240
CONFIG = mr.Config(job_sink_wait=0.2, owner_lease=2)


def pay(row: dict[str, Any]) -> dict[str, Any]:
    write_line(Path(os.environ["CALLS_OF_TEST"]), f"{row['x']}")
    time.sleep(0.02)
    return {"x": row["x"], "paid": -row["x"]}


def run_once(environment: Mapping[str, str], url: str, scratch: str) -> None:
    """Run the job to its end, in a process of its own."""
    os.environ.update(environment)
    with mr.open(url, config=CONFIG) as ws:
        job = ws.job("paid")
        rows = job.source("rows", journal="in")
        paid = rows.map("pay", pay, schema="x bigint, paid bigint", expensive=True, batch_rows=2)
        paid.sink_parquet(f"{url}-out")
        broker = broker_of(ws.journals)
        run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker, Path(scratch)))


def calls(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


@pytest.mark.parametrize(
    ("seed", "shares"),
    [
        (1, (1 / 2,)),
        *(pytest.param(n, (1 / 4, 1 / 2, 3 / 4), marks=pytest.mark.slow) for n in range(2, 8)),
    ],
)
def test_a_killed_job_on_a_faulty_bucket_has_each_row_once(
    server: Server, url: str, tmp_path: Path, seed: int, shares: tuple[float, ...]
) -> None:
    """It is killed when so many of its calls were made, and started again."""
    log = tmp_path / "calls"
    with mr.open(url, create=True) as ws:
        ws.journals.create("in", pa.schema([("x", pa.int64())]))
        ws.journals.append("in", pa.table({"x": list(range(ROWS))}))
    with FaultyProxy(server.port, share=0.08, seed=seed).running() as proxy:
        environment = {
            **os.environ,
            **credentials(proxy.endpoint),
            "CALLS_OF_TEST": str(log),
        }
        given = (environment, url, str(tmp_path))
        kills = 0
        for share in (*shares, 2):
            child = SPAWN.Process(target=run_once, args=given)
            child.start()
            until = time.monotonic() + WAIT_S
            while child.is_alive() and len(calls(log)) < share * ROWS:
                assert time.monotonic() < until, f"it does not get on: {calls(log)}"
                time.sleep(0.01)
            if child.is_alive():
                child.kill()
                kills += 1
            child.join(WAIT_S)
            if child.exitcode == 0:
                break
            assert child.exitcode == KILLED, "it ended by an error"

    assert child.exitcode == 0
    out = store_at(f"{url}-out")
    files = [listed.name for listed in out.calls.list(".", deep=True)]
    tables = [
        pq.read_table(pa.BufferReader(out.calls.get(name) or b""))
        for name in files
        if not name.startswith(".")
    ]
    rows = pa.concat_tables(tables).to_pylist()
    assert sorted(row["x"] for row in rows) == list(range(ROWS))
    assert all(row["paid"] == -row["x"] for row in rows)
    made = Counter(calls(log))
    assert set(made) == set(range(ROWS))
    # Two batches of two calls are in doubt at each kill, at most.
    assert sum(made.values()) - ROWS <= 4 * kills
    assert set(proxy.met) <= set(FAULTS)
    assert sum(proxy.met.values()) > 0
