"""A job with journals in a bucket: what it asks of the server, and what a dead worker leaves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.s3.s3_kit import Proxy, Server, credentials, on_all, store_at
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    QUICK,
    Bench,
    fill,
    hop,
    map_step,
    output,
    totals,
    write_line,
)

from millrace.faults import VARIABLE
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop

KILLED = -signal.SIGKILL
ROWS, BATCH_ROWS = 12, 2
ARMING = 5
"""The process is armed when the step is called for this row."""
CALL_S = 0.05
CONFIG = QUICK.with_options(job_turn_ms=60_000, job_ahead_ms=1)
FIRST = ("worker.intent.before", "worker.intent.after")
LATER = (
    "worker.publish.before",
    "worker.publish.after",
    "worker.call.before",
    "worker.call.after",
    "ledger.log.before_add",
    "ledger.log.after_add",
)
SPAWN = multiprocessing.get_context("spawn")


def opened(url: str) -> LogBroker:
    store = store_at(url, CONFIG)
    return LogBroker.open_log(store, "journals", StoreLog(store, "journals", CONFIG), CONFIG)


def pay(log: Path, row: dict[str, Any]) -> dict[str, Any]:
    write_line(log, f"{row['x']}")
    if row["x"] == ARMING and (point := os.environ.pop("ARMED_LATER", None)) is not None:
        os.environ[VARIABLE] = point
    time.sleep(CALL_S)
    return {"x": -row["x"]}


def job(log: Path) -> list[Hop]:
    step = map_step("pay", partial(pay, log), expensive=True, batch_rows=BATCH_ROWS)
    return [hop(step)]


def bench_of(url: str, folder: Path, broker: LogBroker) -> Bench:
    bench = Bench(folder, job(folder / "calls.log"), CONFIG, broker)
    bench.workspace = url
    return bench


def in_child(environment: Mapping[str, str], url: str, folder: Path, point: str | None) -> None:
    os.environ.update(environment)
    broker = opened(url)
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)
    bench = bench_of(url, folder, broker).start()
    if point is not None:
        os.environ[VARIABLE if point in FIRST else "ARMED_LATER"] = point
    bench.run()
    broker.close()


def run(url: str, folder: Path, point: str | None = None) -> int | None:
    given = (dict(os.environ), url, folder, point)
    child = SPAWN.Process(target=in_child, args=given)
    child.start()
    child.join(120)
    return child.exitcode


def prepare(url: str) -> None:
    broker = opened(url)
    fill(broker, range(ROWS))
    broker.close()


def test_a_call_costs_at_most_one_put_and_nothing_is_read_again(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server.port).running() as proxy:
        for name, value in credentials(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        broker = opened(url)
        fill(broker, range(ROWS))
        # Rows of files, as those of a source are: counting what waits must not read them.
        stored = broker.store_file(NUMBERS, [pa.record_batch({"x": list(range(ROWS, 2 * ROWS))})])
        with broker.transaction() as t:
            t.adopt(hops.output_journal(JOB, "src", 0), [stored])
        bench = bench_of(url, tmp_path, broker).start()
        proxy.seen.clear()

        bench.run()

        calls = 2 * ROWS
        assert sorted(output(broker, "pay")) == sorted(-value for value in range(2 * ROWS))
        broker.close()
    # The lease, the first intent, results with the next intent, the last results, the release.
    assert proxy.seen["PUT"] <= calls + 4
    assert proxy.seen["GET"] + proxy.seen["HEAD"] + proxy.seen["LIST"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("point", [*FIRST, *LATER])
@on_all
def test_a_worker_killed_in_front_of_a_bucket_leaves_only_the_call_in_doubt_that_it_was_in(
    url: str, tmp_path: Path, point: str
) -> None:
    prepare(url)
    assert run(url, tmp_path, point) == KILLED
    assert run(url, tmp_path) == 0

    broker = opened(url)
    assert sorted(output(broker, "pay")) == sorted(-value for value in range(ROWS))
    doubted = totals(broker, "pay").in_doubt
    broker.close()
    made = Counter((tmp_path / "calls.log").read_text(encoding="utf-8").split())
    again = [value for value, count in made.items() if count > 1]
    assert len(again) <= doubted <= 1
