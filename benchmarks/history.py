"""What a long history costs: workspaces with 1x, 2x, 4x and 8x as many finished runs.

    .venv/bin/python benchmarks/history.py [--runs 625]

Each run has one map output of eight partitions, made of one input file that changed each time, by
the code that a map task runs. Then, all in CPU seconds of one process: `find_ms` looks for one
map task's finished work that is not there, `why_ms` asks for the reason, `list_s` makes the rows
of `millrace shuffle ls`, `cleanup_s` is a clean-up that finds nothing to remove. The goals at
5,000 runs: the reason in under 5 ms, the list and the clean-up in under a second each.

The table goes to stderr, one JSON line for each size to stdout.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.ids import AttemptId, MapTask, StageId
from millrace.keys import HashPartitioner
from millrace.shuffle import manifest, reuse, runs, writer
from millrace.shuffle.index import MapTaskIndex
from millrace.storage.local import LocalStore

ROWS: Final = pa.table({"x": pa.array(range(100), pa.int64())})
TRIES: Final = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def made_from(version: int) -> dict[str, Any]:
    entry = {"path": "/data/orders.parquet", "size": version, "mtime_ns": 5, "ctime_ns": 5}
    return {"inputs": [entry], "scan": {"format": "parquet"}, "partitioner": {"kind": "hash"}}


def finish_run(store: LocalStore, version: int) -> MapTaskIndex:
    run = runs.begin_run(store, plan="orders", about={"stages": 1}, now_ms=now_ms())
    attempt = AttemptId.of(run.query_id, 0, 0, 1)
    writer.begin_attempt(store, attempt)
    index = writer.write_map_output(
        store,
        attempt,
        ROWS.to_batches(),
        schema=ROWS.schema,
        partitioner=HashPartitioner("x", 8),
        config=Config(sync=False),
        now_ms=now_ms,
        provenance=writer.Provenance(made_from=made_from(version)),
    )
    sizes = [(part.rows, part.bytes) for part in index.partitions]
    runs.write_manifest(
        store,
        manifest.Manifest(
            query_id=run.query_id,
            stage_id=StageId(0),
            created_at_ms=now_ms(),
            partitions=len(sizes),
            partitioner={"kind": "hash"},
            schema=ROWS.schema,
            chosen=(
                manifest.Choice(
                    map_task=MapTask(0),
                    attempt=attempt,
                    folder=None,
                    content=index.content_checksum(),
                    rows=index.rows,
                    bytes=index.bytes,
                ),
            ),
            partition_rows=tuple(rows for rows, _ in sizes),
            partition_bytes=tuple(size for _, size in sizes),
        ),
        sync=False,
    )
    runs.end_run(store, run.query_id)
    return index


def cpu_s(work: Callable[[], object]) -> float:
    """The least of some tries: other work on the machine only adds."""
    tries = []
    for _ in range(TRIES):
        began = time.process_time()
        work()
        tries.append(time.process_time() - began)
    return min(tries)


def measure(folder: str, store: LocalStore, had: int) -> dict[str, Any]:
    new = made_from(0)

    def listed() -> None:
        result = CliRunner().invoke(cli, ["shuffle", "ls", folder, "--json"])
        assert len(json.loads(result.stdout)) == had, result.output

    with mr.open(folder) as ws:
        return {
            "benchmark": "history",
            "runs": had,
            "find_ms": 1e3 * cpu_s(lambda: reuse.find(store, new, has_content=bool)),
            "why_ms": 1e3 * cpu_s(lambda: reuse.why_not(store, new)),
            "list_s": cpu_s(listed),
            "cleanup_s": cpu_s(lambda: ws.cleanup(ttl="30d")),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=625, help="runs of the smallest history")
    smallest = parser.parse_args().runs
    table = Table("runs", "find ms", "why ms", "list s", "clean-up s")
    with tempfile.TemporaryDirectory() as folder:
        mr.open(folder, create=True).close()
        store = LocalStore(folder)
        had = 0
        for times in (1, 2, 4, 8):
            while had < smallest * times:
                had += 1
                finish_run(store, had)
            found = measure(folder, store, had)
            print(json.dumps(found), flush=True)
            table.add_row(
                f"{had:,}",
                *(f"{found[k]:.2f}" for k in ("find_ms", "why_ms", "list_s", "cleanup_s")),
            )
    Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
