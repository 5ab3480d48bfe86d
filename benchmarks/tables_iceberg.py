"""The cost of a commit to an Iceberg table by the length of its history.

    python benchmarks/tables_iceberg.py [COMMITS...]     10 100 1000 by default

Each commit names one file. CPU is that of this process, for the commit alone, of the last hundred;
the catalog is a file of SQLite. Every hundredth commit merges manifests. `kept` is keep_snapshots=.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from statistics import mean, median

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from millrace.config import Config
from millrace.tables.iceberg.iceberg_target import target_of

ROWS = pa.table({"x": list(range(1000))})
MEASURED, KEPT = 100, 100


def main(lengths: list[int]) -> None:
    print("kept | commits of history | CPU ms, median | CPU ms, mean with merges | metadata, kB")
    for kept in (None, KEPT):
        with tempfile.TemporaryDirectory() as folder:
            measure(folder, lengths, kept)


def measure(folder: str, lengths: list[int], kept: int | None) -> None:
    catalog = {
        "name": "benchmark",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    load_catalog(**catalog).create_namespace("db")
    target = target_of("db.t", catalog, call="benchmark", keep_snapshots=kept)
    target.check(ROWS.schema, Config(), who="benchmark")
    files = target.writer(ROWS.schema, Config(), who="benchmark").write([ROWS], "f")
    commits = target.commits("benchmark", Config())
    place = 0
    for length in lengths:
        took: list[float] = []
        while place < length:
            begun = time.process_time()
            commits.commit(files, before=place or None, place=place + 1)
            took.append((time.process_time() - begun) * 1000)
            place += 1
        last = took[-MEASURED:]
        size = os.path.getsize(target.load().metadata_location.removeprefix("file://")) // 1000
        shown = f"{median(last):.1f} | {mean(last):.1f} | {size}"
        print(f"{kept or 'all'} | {length} | {shown}", flush=True)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [10, 100, 1000])
