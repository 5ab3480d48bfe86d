"""A whole job in a process of its own: cheap step, paid step, filter, files. Killed at any time.

The paid API is a service in the test's process, which writes down each call. What came out is read
by DuckDB. Neither knows anything of the product's code.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    filter_step,
    hop,
    map_step,
)

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.define.context import Context
from millrace.pipeline.sinks import check_sink
from millrace.testing.paid_api import answer_to, ask, calls

ROWS = 120
PARTITIONS = 3
WORKERS = 3
BATCH_ROWS = 4
CAPTIONS = pa.schema([("x", pa.int64()), ("caption", pa.string()), ("score", pa.float64())])
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
CONFIG = QUICK.with_options(job_turn_ms=30, job_sink_bytes=200, job_sink_wait=0.02)


def plus_thousand(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Every tenth row makes none, every seventh makes two."""
    value = row["x"]
    made = [{"x": value + 1000}] if value % 10 else []
    return made + ([{"x": value + 2000}] if value % 7 == 0 else [])


def wanted() -> list[int]:
    """The rows that are paid for."""
    return sorted(row["x"] for value in range(ROWS) for row in plus_thousand({"x": value}))


def expected() -> list[tuple[int, str, float]]:
    """What is to come out."""
    answers = [(x, answer_to({"id": x, "text": f"row {x}"})) for x in wanted()]
    return [(x, each["caption"], each["score"]) for x, each in answers if each["score"] >= 0.5]


def caption(url: str, row: dict[str, Any], context: Context) -> dict[str, Any]:
    """A paid call."""
    x = row["x"]
    return {"x": x} | ask(url, {"id": x, "text": f"row {x}"}, context.key)


def job_hops(folder: str, url: str) -> list[Hop]:
    paying = map_step(
        "caption",
        partial(caption, url),
        schema=CAPTIONS,
        context=True,
        expensive=True,
        batch_rows=BATCH_ROWS,
    )
    sink = ParquetSink(name="files", schema=CAPTIONS, path=f"{folder}/out")
    return [
        hop(
            map_step("clean", plus_thousand, durable=True),
            partitions=PARTITIONS,
            feeds=["caption"],
        ),
        hop(
            paying,
            inputs=[hops.output_prefix(JOB, "clean")],
            partitions=PARTITIONS,
            depth=2,
            feeds=["files"],
        ),
        hop(
            filter_step("score >= 0.5", schema=CAPTIONS),
            inputs=[hops.output_prefix(JOB, "caption")],
            schema=CAPTIONS,
            sink=sink,
            depth=3,
        ),
    ]


def take_in(folder: str) -> None:
    """The source, as a journal."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    fill(broker, range(ROWS), partitions=PARTITIONS)
    broker.close()


def child_runs(folder: str, url: str) -> None:
    """Run the job to its end, going on where the last process was killed."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    steps = job_hops(folder, url)
    check_sink(steps[-1], broker)
    Bench(Path(folder), steps, CONFIG, broker).start().run(workers=WORKERS)
    broker.close()


def found(folder: Path) -> list[tuple[int, str, float]]:
    """What came out so far."""
    if not any(folder.glob("out/*.parquet")):
        return []
    query = f"SELECT x, caption, score FROM read_parquet('{folder}/out/*') ORDER BY x"
    return duckdb.execute(query).fetchall()


def judge_calls(log: Path, kills: int) -> None:
    """Every row was paid for, under one key, and at most a batch of each worker twice."""
    made = calls(log)
    times = Counter(call["id"] for call in made)
    assert sorted(times) == wanted()
    assert len({(call["id"], call["key"]) for call in made}) == len(times)
    assert len({call["key"] for call in made}) == len(times)
    assert len(made) - len(times) <= kills * WORKERS * BATCH_ROWS
    assert max(times.values()) <= kills + 1
