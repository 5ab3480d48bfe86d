"""What exactly-once costs: a job beside the same functions in one plain `mapInArrow`.

    .venv/bin/python benchmarks/job.py [--rows 1000000] [--cost-us 50] [--batch N]
        [--parts peers growth expensive] [--kinds row batch] [--rounds 1] [--calls 200]

Both read the same Parquet files on the same Spark, take each row through a function that keeps the
processor busy for `--cost-us`, a second one that costs next to nothing and a filter, and write
Parquet. The function counts to a number that was found once, before anything is measured, so it
does the same work on both sides. Plain Spark keeps nothing on the way. Millrace takes the source
in, publishes with offsets, and opens a workspace that is empty. Each side has a Spark session, and
so workers, of its own, warmed by a small run.

`peers` gives functions of rows and of batches; `ratio` is how many times as long Millrace takes,
goal at most 1.5. `cpu_ratio` is the same of the CPU that all processes used, which other work on
the machine changes less. `in_function` is the share of both cores' time in the first function.
`memory_above_mb` is the most memory of a worker process above that of the plain job's, goal under
100; "anonymous" leaves out mapped files and libraries. `growth` is the same over 1/8, 1/4 and 1/2
of the rows. `expensive` has calls recorded, 16 rows each, that sleep for 100 and 20 ms:
`in_function` is the share of the workers' turns, goal 0.95 at 100 ms, `of_run` of the whole run.

Tables go to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.pipeline.report.job_report import JobReport
from millrace.spark.session import slots, start_session

DATA: Final = Path(__file__).parent / ".data"
OUT: Final = DATA / "job-out"
FILES: Final = 8
WARM_ROWS: Final = 2_000
KEPT: Final = 0.25
COLUMNS: Final = "id bigint, name string, score double"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
CALL_ROWS: Final = 16
SLEEPS_MS: Final = (100, 20)

Row = dict[str, Any]
Measured = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The user's functions.
def burn(spins: int) -> None:
    for _ in range(spins):
        pass


def score_row(spins: int, row: dict) -> dict:  # type: ignore[type-arg]
    burn(spins)
    return {"id": row["id"], "name": row["name"], "score": row["value"] * 0.5}


def tag_row(row: dict) -> dict:  # type: ignore[type-arg]
    return {"id": row["id"], "name": row["name"] + "!", "score": row["score"] + 0.125}


def score_batch(spins: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    burn(spins * batch.num_rows)
    scores = pc.multiply(batch["value"], 0.5)
    return pa.RecordBatch.from_arrays([batch["id"], batch["name"], scores], schema=SCHEMA)


def tag_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = pc.binary_join_element_wise(batch["name"], "!", "")
    scores = pc.add(batch["score"], 0.125)
    return pa.RecordBatch.from_arrays([batch["id"], names, scores], schema=SCHEMA)


def pay(sleep_ms: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(sleep_ms / 1000)
    return batch.select(["id"])


def spins_for(cost_us: float) -> int:
    """How far to count to be busy for so long, at this machine's best."""
    spins, best = 200_000, float("inf")
    for _ in range(20):
        begun = time.perf_counter()
        burn(spins)
        best = min(best, time.perf_counter() - begun)
    return max(1, int(spins * cost_us / 1e6 / best))


# The two sides.
def make_files(rows: int) -> str:
    folder = DATA / f"job-{rows}"
    if not (folder / "_made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(FILES):
            ids = np.arange(number, rows, FILES)
            values = np.random.default_rng(number).random(len(ids))
            names = pa.array(np.char.add("customer-", ids.astype("U9")))
            table = pa.table({"id": ids, "name": names, "value": values})
            pq.write_table(table, folder / f"{number}.parquet")
        (folder / "_made").touch()
    return str(folder)


def plain_side(spark: SparkSession, source: str, kind: str, spins: int, batch: int | None) -> None:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for given in batches:
            if kind == "row":
                rows = [tag_row(score_row(spins, row)) for row in given.to_pylist()]
                made = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            else:
                made = tag_batch(score_batch(spins, given))
            yield made.filter(pc.greater_equal(made["score"], KEPT))

    if batch is not None:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
    frame = spark.read.parquet(source).mapInArrow(run, COLUMNS)
    frame.write.mode("overwrite").parquet(str(OUT))


def job_side(spark: SparkSession, source: str, kind: str, spins: int, batch: int | None) -> None:
    score, tag = (score_row, tag_row) if kind == "row" else (score_batch, tag_batch)
    with mr.open(DATA / "job-mill", spark) as ws:
        job = ws.job("scores")
        scored = job.source("rows", spark.read.parquet(source)).map(
            "score", partial(score, spins), schema=COLUMNS, batch_rows=batch, version="1"
        )
        tagged = scored.map("tag", tag, schema=COLUMNS, batch_rows=batch, version="1")
        tagged.filter(f"score >= {KEPT}").sink_parquet(str(OUT))
        say(str(job.run()))


def clear() -> None:
    for folder in (OUT, DATA / "job-mill"):
        shutil.rmtree(folder, ignore_errors=True)


def check_written(source: str) -> None:
    """Both sides must have written the rows that the functions leave, each once."""
    given = ds.dataset(source, exclude_invalid_files=True).to_table()
    kept = pc.greater_equal(pc.add(pc.multiply(given["value"], 0.5), 0.125), KEPT)
    wanted = given.filter(kept)["id"].sort()
    found = ds.dataset(str(OUT), exclude_invalid_files=True).to_table()["id"].sort()
    assert found.equals(wanted), f"{len(found):,} rows were written, {len(wanted):,} are right"


SIDES: Final = {"plain": plain_side, "millrace": job_side}


def measure(side: str, rows: list[int], kind: str, spins: int, batch: int | None) -> list[Measured]:
    """Seconds and memory of one side for each number of rows, in a Spark session of its own."""
    sources = {count: make_files(count) for count in (WARM_ROWS, *rows)}
    spark = start_session("job")
    found = []
    try:
        for count, source in sources.items():
            clear()
            with most_memory() as memory:
                begun, used = time.perf_counter(), cpu_s()
                SIDES[side](spark, source, kind, spins if count > WARM_ROWS else 1, batch)
                seconds, used = time.perf_counter() - begun, cpu_s() - used
            check_written(source)
            say(f"{side}, {kind} functions, {count:,} rows: {seconds:.2f} s, {used:.2f} of CPU")
            found.append(
                {"s": seconds, "cpu_s": used, "cores": slots(spark, mr.Config()), **memory}
            )
    finally:
        spark.stop()
        clear()
    return found[1:]


def compare(rows: list[int], kind: str, spins: int, asked: argparse.Namespace) -> list[Measured]:
    """Both sides, one after the other, as often as asked; medians of each."""
    rounds: dict[str, list[list[Measured]]] = {side: [] for side in SIDES}
    for _ in range(asked.rounds):
        for side in SIDES:
            rounds[side].append(measure(side, rows, kind, spins, asked.batch))
    out = []
    for place, count in enumerate(rows):
        plain, ours = (
            {key: statistics.median(one[place][key] for one in rounds[side]) for key in one_of}
            for side in SIDES
            for one_of in (rounds[side][0][place],)
        )
        busy = count * asked.cost_us / 1e6
        out.append(
            {
                "case": f"{kind} functions, {count:,} rows, {asked.cost_us:g} us a row",
                "millrace_s": round(ours["s"], 2),
                "peer_s": round(plain["s"], 2),
                "millrace_rows_per_s": round(count / ours["s"]),
                "peer_rows_per_s": round(count / plain["s"]),
                "ratio": round(ours["s"] / plain["s"], 2),
                "millrace_cpu_s": round(ours["cpu_s"], 2),
                "peer_cpu_s": round(plain["cpu_s"], 2),
                "cpu_ratio": round(ours["cpu_s"] / plain["cpu_s"], 2),
                "in_function": round(busy / ours["s"] / ours["cores"], 2),
                "peer_in_function": round(busy / plain["s"] / plain["cores"], 2),
                "memory_mb": round(ours["resident"] / 1e6),
                "memory_above_mb": round((ours["resident"] - plain["resident"]) / 1e6),
                "anonymous_above_mb": round((ours["anonymous"] - plain["anonymous"]) / 1e6),
            }
        )
    return out


# Calls that are recorded.
def expensive(sleeps_ms: tuple[int, ...], calls: int) -> list[Measured]:
    spark = start_session("job")
    out = []
    try:
        pay_for(spark, 1, 8)
        for sleep_ms in sleeps_ms:
            report = pay_for(spark, sleep_ms, calls)
            step = report.step("pay")
            slept = calls * sleep_ms / 1000
            out.append(
                {
                    "case": f"{calls} calls of {sleep_ms} ms, {CALL_ROWS} rows each",
                    "calls": step.calls,
                    "run_s": round(report.seconds, 2),
                    "in_function": round(step.in_function or 0.0, 3),
                    "of_run": round(slept / report.seconds / slots(spark, mr.Config()), 3),
                }
            )
            assert step.calls is not None
            assert calls <= step.calls <= calls + 8, "a call for each batch, and for short ones"
    finally:
        spark.stop()
        clear()
    return out


def pay_for(spark: SparkSession, sleep_ms: int, calls: int) -> JobReport:
    clear()
    with mr.open(DATA / "job-mill", spark) as ws:
        job = ws.job("paid")
        rows = job.source("rows", spark.range(calls * CALL_ROWS))
        function = partial(pay, sleep_ms)
        paid = rows.map(
            "pay", function, schema="id bigint", expensive=True, batch_rows=CALL_ROWS, version="1"
        )
        paid.sink_parquet(str(OUT))
        report = job.run()
    say(str(report))
    return report


# Memory.
@contextlib.contextmanager
def most_memory() -> Iterator[dict[str, int]]:
    """The most memory that one of this process's Spark workers holds meanwhile, in bytes."""
    found = {"resident": 0, "anonymous": 0}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for pid in spark_workers():
                with contextlib.suppress(OSError, ValueError):
                    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
                    lines = dict(line.split(":", 1) for line in text.splitlines())
                    for name, key in (("resident", "VmRSS"), ("anonymous", "RssAnon")):
                        held = int(lines.get(key, "0").split()[0]) * 1024
                        found[name] = max(found[name], held)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def below() -> list[int]:
    """This process and all that it started, and so on; those of others run here, too."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            fields = (folder / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    out = []
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            out.append(pid)
    return out


def spark_workers() -> list[int]:
    out = []
    for pid in below():
        with contextlib.suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                out.append(pid)
    return out


def cpu_s() -> float:
    """CPU that this process used, and all below it, also those that ended."""
    ticks = 0
    for pid in below():
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
            ticks += sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def show(part: str, found: list[Measured]) -> None:
    table = Table(*found[0], title=part)
    for one in found:
        print(json.dumps({"benchmark": "job", "part": part, **one}), flush=True)
        table.add_row(*(str(value) for value in one.values()))
    Console(stderr=True, width=200).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cost-us", type=float, default=50)
    parser.add_argument("--batch", type=int, help="rows of a batch, on both sides")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=["row", "batch"], choices=["row", "batch"])
    every = ["peers", "growth", "expensive"]
    parser.add_argument("--parts", nargs="+", default=every, choices=every)
    asked = parser.parse_args()
    rows = asked.rows
    spins = spins_for(asked.cost_us)
    say(f"counting to {spins:,} takes {asked.cost_us:g} us here")
    parts: dict[str, Callable[[], list[Measured]]] = {
        "peers": lambda: [
            one for kind in asked.kinds for one in compare([rows], kind, spins, asked)
        ],
        "growth": lambda: compare([rows // 8, rows // 4, rows // 2], asked.kinds[0], spins, asked),
        "expensive": lambda: expensive(SLEEPS_MS, asked.calls),
    }
    for part in asked.parts:
        show(part, parts[part]())


if __name__ == "__main__":
    main()
