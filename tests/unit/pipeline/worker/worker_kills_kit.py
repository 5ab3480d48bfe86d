"""Processes that run a job and are killed in it; a judge reads what their function wrote down.

The job: a filter and a cheap step, an expensive step that raises once for some rows, and a sink of
files. The function of the expensive step arms the fault when it is called for a certain row, so
that the process dies in the middle of things.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    QUICK,
    Bench,
    fill,
    filter_step,
    hop,
    map_step,
    write_line,
)

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.sinks import check_sink

KILLED = -signal.SIGKILL
ROWS = 40
BATCH_ROWS = 4
FRONT_ROWS = 14
"""Rows of a batch of the cheap step that is fused in front of the paid calls."""
ARMING = 21
"""The process is armed when the expensive step is called for this row."""
IN_CALL = "in the call"
"""In place of a point: the process is killed in the function itself."""
RAISERS = (3, 23, 31)
"""Rows for which the first call of all raises."""
CONFIG = QUICK.with_options(job_turn_ms=60_000, job_linger_ms=2)
CONCURRENCY = 3
CALL_S = 0.004
"""How long calls take of which several are made at once."""
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.unit.pipeline.worker.worker_kills_kit"])


def expected() -> list[int]:
    return [-value for value in range(1, ROWS + 1) if value % 2]


def plus_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + 1}


def pay(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    """A paid call: written down before anything else happens."""
    with _noted(folder, row):
        return _pay(folder, row)


def pay_slowly(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    """The same, of threads."""
    with _noted(folder, row):
        time.sleep(CALL_S * (row["x"] % 3))
        return _pay(folder, row)


async def pay_async(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    """The same, of tasks."""
    with _noted(folder, row):
        await asyncio.sleep(CALL_S * (row["x"] % 3))
        made = _pay(folder, row)
        await asyncio.sleep(CALL_S * (row["x"] % 2))
        return made


@contextlib.contextmanager
def _noted(folder: str, row: dict[str, Any]) -> Iterator[None]:
    """Write down when a call begins and ends."""
    write_line(Path(folder) / "life.log", f"begin {row['x']}")
    try:
        yield
    finally:
        write_line(Path(folder) / "life.log", f"end {row['x']}")


def _pay(folder: str, row: dict[str, Any]) -> dict[str, Any]:
    value, log = row["x"], Path(folder) / "calls.log"
    is_first = f"{value}" not in lines(log)
    write_line(log, f"{value}")
    if value == ARMING and os.environ.get("ARMED_LATER") == IN_CALL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif value == ARMING and os.environ.get("ARMED_LATER") == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    elif value == ARMING and os.environ.get("ARMED_LATER"):
        os.environ[VARIABLE] = os.environ["ARMED_LATER"]
    if value in RAISERS and is_first:
        raise ConnectionError("try again")
    return {"x": -value}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class PaidEngine:
    """The same, of an engine that finishes rows in another order than they came in."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._rows: dict[str, dict[str, Any]] = {}

    def submit(self, key: str, row: dict[str, Any]) -> None:
        write_line(Path(self._folder) / "life.log", f"begin {row['x']}")
        self._rows[key] = row

    def poll(self) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
        time.sleep(CALL_S)
        ready = list(self._rows.items())[-2:]
        for key, row in reversed(ready):
            del self._rows[key]
            result: dict[str, Any] | Exception
            try:
                result = _pay(self._folder, row)
            except ConnectionError as error:
                result = error
            write_line(Path(self._folder) / "life.log", f"end {row['x']}")
            yield key, result


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "row": pay,
    "engine": PaidEngine,
    "threads": pay_slowly,
    "async": pay_async,
    "unordered": pay_async,
}


def job_hops(
    folder: str,
    *,
    fused: bool = False,
    kind: str = "row",
    **options: Any,  # noqa: ANN401 - of any option
) -> list[Hop]:
    """The job; `fused`: its cheap step runs in the hop of the expensive one."""
    several = {} if kind == "row" else {"concurrency": CONCURRENCY}
    paying = map_step(
        "pay",
        partial(FUNCTIONS[kind], folder),
        is_async=kind in ("async", "unordered"),
        engine=kind == "engine",
        ordered=kind != "unordered",
        **{"expensive": True, "batch_rows": BATCH_ROWS, "retries": 1, **several, **options},
    )
    sink = ParquetSink(name="files", schema=NUMBERS, path=f"{folder}/out")
    if fused:
        front = (map_step("plus", plus_one, batch_rows=FRONT_ROWS), filter_step("x % 2 = 1"))
        return [
            hop(*front, paying, feeds=["files"]),
            hop(inputs=[hops.output_prefix(JOB, "pay")], sink=sink, depth=2),
        ]
    return [
        hop(map_step("plus", plus_one), feeds=["pay"]),
        hop(
            filter_step("x % 2 = 1"),
            paying,
            inputs=[hops.output_prefix(JOB, "plus")],
            depth=2,
            feeds=["files"],
        ),
        hop(inputs=[hops.output_prefix(JOB, "pay")], sink=sink, depth=3),
    ]


def prepare(folder: str, *, fused: bool = False) -> None:
    """The journals of the job, with its rows."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    fill(broker, range(ROWS))
    bench = Bench(Path(folder), job_hops(folder, fused=fused, on_doubt="skip"), CONFIG, broker)
    for each in bench.hops:
        check_sink(each, broker)
    bench.start()
    broker.close()


def run_job(
    folder: str,
    now: str | None,
    later: str | None,
    options: dict[str, Any],
    config: Config = CONFIG,
) -> None:
    """Run the job to its end, or die at a point, from the beginning or later on."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    bench = Bench(Path(folder), job_hops(folder, **options), config, broker).start()
    if now is not None:
        os.environ[VARIABLE] = now
    if later is not None:
        os.environ["ARMED_LATER"] = later
    bench.run()
    broker.close()


def run_until_told(folder: str) -> None:
    """Run a worker as a Spark task does that is asked to end while it is in a call."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    worker = Bench(Path(folder), job_hops(folder), CONFIG, broker).start().worker()
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    os.environ["ARMED_LATER"] = "SIGTERM"
    assert worker.run().ended == "stopped"
    broker.close()


def in_child(function: Callable[..., None], *args: object) -> int:
    """Run a function of this module in a process of its own; its exit code."""
    child = _FORK.Process(target=function, args=args)
    child.start()
    child.join(60)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def lose_host(folder: Path) -> None:
    """What a host keeps of its processes is gone, as when it is switched off."""
    shutil.rmtree(folder / hops.ROOT / JOB / "calls")


def files(folder: Path) -> list[int]:
    """What the sink shows."""
    tables = [pq.read_table(path) for path in sorted((folder / "out").glob("*.parquet"))]
    return sorted(value for table in tables for value in table["x"].to_pylist())


def calls_under_way(folder: Path) -> set[int]:
    """Calls that began and did not return; a call that raised did. Read before the next worker."""
    found: Counter[int] = Counter()
    for line in lines(folder / "life.log"):
        word, value = line.split()
        found[int(value)] += 1 if word == "begin" else -1
    return {value for value, count in found.items() if count}


def called_again(folder: Path) -> list[int]:
    """Rows that were called for more often than a run without faults does."""
    found = Counter(int(line) for line in lines(folder / "calls.log"))
    assert set(found) == {-value for value in expected()}, "a row was never called for"
    return [value for value, count in found.items() if count > 1 + (value in RAISERS)]
