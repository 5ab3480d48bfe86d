"""Work that loses what it needs, as a program of its own.

    python gone_app.py WORK WORKSPACE FOLDER OPTIONS

It prints lines of a word and JSON: JVM and the process id of Spark's JVM, and at its end ENDED and
what it came to. Half-way it makes the file `half` in FOLDER and waits for the file `go`: a test
kills what it likes meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.errors import MillraceError

ROWS = 12
HALF = ROWS // 2
SCHEMA = pa.schema([("id", pa.int64())])
READ = mr.CoordinatedRead("counted", [mr.Binding(name="all", prefix="t", key="id")])


def say(word: str, what: object) -> None:
    sys.stdout.write(f"{word} {json.dumps(what)}\n")
    sys.stdout.flush()


def be_half_way(folder: str) -> None:
    """Say that the work is half done, and go on when a test has done its part."""
    Path(folder, "executor").write_text(str(executor_of(os.getpid())))
    Path(folder, "half").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def executor_of(pid: int) -> int:
    """The process of Spark's that a Python worker belongs to."""
    while pid > 1 and b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def run_dataset(ws: mr.Workspace, folder: str, _options: dict[str, Any]) -> list[int]:
    """One task is done, the other one waits in the middle of a function."""
    inputs = Path(folder, "inputs")
    if not inputs.exists():
        inputs.mkdir()
        for number in range(2):
            first = number * HALF
            rows = pa.table({"id": pa.array(range(first, first + HALF), pa.int64())})
            pq.write_table(rows, inputs / f"{number}.parquet")

    def passed(batch: pa.RecordBatch) -> pa.RecordBatch:
        if HALF in batch["id"].to_pylist():
            be_half_way(folder)
        return batch

    rows = ws.read_parquet(str(inputs)).map_batches(passed, SCHEMA, version="1")
    return sorted(rows.to_arrow()["id"].to_pylist())


def run_job(ws: mr.Workspace, folder: str, _options: dict[str, Any]) -> list[int]:
    """Some rows are done, one waits in the middle of a call."""

    def passed(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == HALF:
            be_half_way(folder)
        return {"id": row["id"]}

    job = ws.job("passed")
    source = job.source("rows", ws.spark.range(ROWS), partitions=2)
    made = source.map("pass", passed, schema="id bigint", batch_rows=2, version="1")
    made.sink_journal("done", name="out")
    job.run()
    rows = ws.journals.read("done", 0)
    return sorted(rows.rows()["id"].to_pylist())


def run_reads(ws: mr.Workspace, folder: str, options: dict[str, Any]) -> list[int]:
    """One checkpoint is committed, the next one is waited for and comes when it may go on."""
    ws.journals.create("t/a", SCHEMA)
    kept = Path(folder, "kept.json")
    seen: list[int] = json.loads(kept.read_text()) if kept.exists() else []
    with ws.reads(READ, members=1, on_spark=options.get("on_spark", False)) as session:
        while len(seen) < ROWS:
            if ws.journals.end_offset("t/a") == 0:
                ws.journals.append("t/a", rows_of(range(HALF)))
            elif len(seen) == HALF:
                if Path(folder, "go").exists():
                    if ws.journals.end_offset("t/a") == HALF:
                        ws.journals.append("t/a", rows_of(range(HALF, ROWS)))
                else:
                    Path(folder, "half").touch()
            checkpoint = session.next_checkpoint()
            assert checkpoint is not None
            seen += session.read(0, checkpoint)["id"].to_pylist()
            kept.write_text(json.dumps(seen))
            session.commit(checkpoint)
    return sorted(seen)


def rows_of(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def run_stream(ws: mr.Workspace, folder: str, _options: dict[str, Any]) -> list[int]:
    """The first micro-batch is done, and the query waits for the next one's rows."""

    spark, out = ws.spark, Path(folder, "out")
    out.mkdir(exist_ok=True)
    if not Path(folder, "log").exists():
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", rows_of(range(HALF)))
    if Path(folder, "go").exists() and ws.journals.end_offset("t/a") == HALF:
        ws.journals.append("t/a", rows_of(range(HALF, ROWS)))
    mr.register(spark)

    def take(frame: DataFrame, number: int) -> None:
        ids = sorted(row["id"] for row in frame.select("id").collect())
        Path(out, f"{number}.json").write_text(json.dumps(ids))
        if ids and not Path(folder, "go").exists():
            Path(folder, "half").touch()

    stream = spark.readStream.format("millrace").option("path", ws.path)
    stream = stream.option("read", json.dumps({"name": "s", "bindings": [BINDING]}))
    query = stream.load().writeStream.foreachBatch(take)
    running = query.option("checkpointLocation", str(Path(folder, "log"))).start()
    while len(streamed(out)) < ROWS:
        running.awaitTermination(1)
    running.stop()
    return sorted(streamed(out))


KEPT = contextlib.ExitStack()
"""What lasts as long as this process."""
BINDING = {"name": "all", "prefix": "t", "key": ["id"]}


def streamed(out: Path) -> list[int]:
    return [number for path in out.glob("*.json") for number in json.loads(path.read_text())]


WORK: dict[str, Callable[[mr.Workspace, str, dict[str, Any]], list[int]]] = {
    "dataset": run_dataset,
    "job": run_job,
    "reads": run_reads,
    "stream": run_stream,
}


def session(options: dict[str, Any]) -> SparkSession | None:
    """The Spark that was asked for; none for work that needs none."""
    match options.get("spark", "classic"):
        case "none":
            return None
        case "classic":
            from millrace.spark.session import start_session

            made = start_session(cores=2)
            gateway: Any = made.sparkContext._gateway
            say("JVM", gateway.proc.pid)
            return made
        case "cluster":
            from tests.cluster.conftest import local_cluster

            return KEPT.enter_context(local_cluster())
        case address:
            return SparkSession.builder.remote(address).getOrCreate()


def main(work: str, workspace: str, folder: str, text: str) -> None:
    options = json.loads(text)
    config = mr.Config(gone_after=options["gone_ms"] / 1000, job_watch_ms=50, heartbeat_ms=1000)
    spark = session(options)
    broker = options.get("broker", "embedded")
    try:
        ws = mr.open(workspace, spark, config=config, broker=broker)
        rows = WORK[work](ws, folder, options)
    except MillraceError as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        say("ENDED", {"kinds": kinds, "text": str(error)})
    except Exception as error:  # noqa: BLE001 - Spark's own, told as it is
        say("ENDED", {"kinds": [type(error).__name__], "text": str(error)})
    else:
        say("ENDED", {"rows": rows})
    sys.stdout.flush()
    os._exit(0)  # What is left of Spark may hang at its end, and is none of the calls' business.


if __name__ == "__main__":
    main(*sys.argv[1:])
