"""What it costs to record paid calls: CPU of the workers for each call, with many under way.

    .venv/bin/python benchmarks/call_records.py [--calls 6000] [--at-once 256] [--call-ms 500]

The function only waits, so all CPU of the workers is that of Millrace: reading rows, recording
calls before they are made, keeping results, publishing them. A job of one round of calls comes
first, and starts the processes. Goal: under 1 ms of CPU a call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import KINDS, cpu_by_kind

WORKERS = 2


def waits(call_ms: int) -> Any:  # noqa: ANN401 - an async function
    """A function that takes so long and does nothing."""

    async def wait(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(call_ms / 1000)
        return {"id": row["id"], "answer": "x" * 200}

    return wait


def cpu_of(
    ws: mr.Workspace, name: str, calls: int, options: argparse.Namespace
) -> dict[str, float]:
    """CPU seconds of a job with so many calls, by kind of process."""
    job = ws.job(name)
    rows = job.source("rows", ws.from_arrow(pa.table({"id": range(calls)})), partitions=WORKERS)
    rows.map(
        "wait",
        waits(options.call_ms),
        schema="id bigint, answer string",
        expensive=True,
        workers=WORKERS,
        concurrency=options.at_once // WORKERS,
        version="1",
    ).sink_parquet(f"{ws.path}-{name}")
    before = cpu_by_kind()
    job.run()
    return dict(
        zip(KINDS, (b - a for a, b in zip(before, cpu_by_kind(), strict=True)), strict=True)
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=6000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--call-ms", type=int, default=500)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="calls-") as folder, mr.open(f"{folder}/mill") as ws:
        cpu_of(ws, "first", options.at_once, options)
        seconds = cpu_of(ws, "measured", options.calls, options)
    cost = {f"{kind}_ms_a_call": round(1000 * s / options.calls, 3) for kind, s in seconds.items()}
    print(json.dumps({**vars(options), **cost, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main(sys.argv[1:])
