"""Queries many times as large as the memory of a task: whether they finish, and in how much.

    .venv/bin/python benchmarks/memory.py [--limit-mib 64] [--times 1 2 5 10] [--only join]

A join of two tables, a group-by in which most rows are a group of their own, and a sort, over so
many times `query_memory_bytes_max` of rows. Each answer is compared with sums that are known.
Memory is that of the largest Python worker, by the system's own count: `peak_mib` with the pages of
mapped files, `own_mib` without. CPU seconds are of the driver, the JVM and the workers.

A table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.config import MIB
from millrace.spark.session import start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import KINDS, cpu_by_kind

ROW_BYTES: Final = 24
FILE_ROWS: Final = 4_000_000
LOOK_S: Final = 0.05


def make_rows(folder: Path, count: int) -> None:
    """Rows of three columns, each key once, in an order that helps nobody."""
    folder.mkdir(parents=True)
    for first in range(0, count, FILE_ROWS):
        numbers = np.arange(first, min(first + FILE_ROWS, count))
        keys = (numbers * 2_654_435_761) % (1 << 32)
        table = pa.table({"k": keys, "v": numbers, "w": numbers * 3})
        path = folder / f"{first // FILE_ROWS:05}.parquet"
        pq.write_table(table, path, row_group_size=FILE_ROWS // 16, use_dictionary=False)


class Workers:
    """The most memory that any Python worker below this process had."""

    def __init__(self) -> None:
        self.peak_kib = self.own_kib = 0
        self._known: dict[str, int] = {}
        self._end = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again meanwhile."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_S):
            for pid in self._workers():
                found = _memory(pid)
                self.peak_kib = max(self.peak_kib, found.get("VmRSS", 0))
                self.own_kib = max(self.own_kib, found.get("RssAnon", 0))

    def _workers(self) -> Iterator[str]:
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            parents[folder.name] = fields[1]
        for pid in parents:
            at, steps = pid, 0
            while at in parents and at != str(os.getpid()):
                at, steps = parents[at], steps + 1
            if at == str(os.getpid()) and steps > 1:
                yield pid


def _memory(pid: str) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    if lines[0].endswith("java"):
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return {name: int(value.split()[0]) for name, value in pairs}


def join(ws: mr.Workspace, given: Path, count: int) -> None:
    """Each row of one table with its row of the other."""
    left = ws.read_parquet(given / "left")
    right = ws.read_parquet(given / "right").select("k", "w AS x")
    answer = left.join(right, on="k").agg(n="count(*)", v="sum(v)", x="sum(x)").to_arrow()
    total = count * (count - 1) // 2
    assert answer.to_pylist() == [{"n": count, "v": total, "x": total * 3}], answer


def group(ws: mr.Workspace, given: Path, count: int) -> None:
    """Each row a group of its own."""
    rows = ws.read_parquet(given / "rows")
    groups = rows.group_by("k").agg(v="sum(v)", w="max(w)", least="min(v)")
    answer = groups.agg(n="count(*)", v="sum(v)", w="sum(w)").to_arrow()
    total = count * (count - 1) // 2
    assert answer.to_pylist() == [{"n": count, "v": total, "w": total * 3}], answer


def sort(ws: mr.Workspace, given: Path, count: int) -> None:
    """All rows in order."""
    answer = ws.read_parquet(given / "rows").sort("k").run()
    assert answer.rows == count, answer


CASES: Final[dict[str, Callable[[mr.Workspace, Path, int], None]]] = {
    "join": join,
    "group": group,
    "sort": sort,
}


def measure(folder: Path, name: str, times: int, limit_mib: int) -> dict[str, Any]:
    """Run one case in a Spark of its own."""
    count = limit_mib * MIB * times // ROW_BYTES
    given = folder / "given"
    if name == "join":
        make_rows(given / "left", count // 2)
        make_rows(given / "right", count // 2)
        count //= 2
    else:
        make_rows(given / "rows", count)
    spark = start_session("memory")
    config = mr.Config(query_memory_bytes_max=limit_mib * MIB)
    found: dict[str, Any] = {"benchmark": "memory", "case": name, "times": times}
    found["limit_mib"] = limit_mib
    workers = Workers()
    try:
        with mr.open(folder / "mill", spark, config=config) as ws, workers.watched():
            started, before = time.perf_counter(), cpu_by_kind()
            try:
                CASES[name](ws, given, count)
                found["error"] = None
            except mr.MillraceError as error:
                found["error"] = str(error)
            spent = [after - b for after, b in zip(cpu_by_kind(), before, strict=True)]
            found["s"] = round(time.perf_counter() - started, 2)
            found |= {f"{kind}_cpu_s": round(s, 2) for kind, s in zip(KINDS, spent, strict=True)}
    finally:
        spark.stop()
    found["peak_mib"] = workers.peak_kib // 1024
    found["own_mib"] = workers.own_kib // 1024
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-mib", type=int, default=64)
    parser.add_argument("--times", nargs="+", type=int, default=[1, 2, 5, 10])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    asked = parser.parse_args()
    table: Table | None = None
    for name in asked.only:
        for times in asked.times:
            folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", ".")))
            try:
                found = measure(folder, name, times, asked.limit_mib)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(json.dumps(found), flush=True)
            table = table or Table(*found, title="queries larger than their memory")
            table.add_row(*map(str, found.values()))
    if table is not None:
        Console(stderr=True, width=160).print(table)
    sys.exit(0)


if __name__ == "__main__":
    main()
