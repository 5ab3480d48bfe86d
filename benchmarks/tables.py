"""The cost of a commit to a Delta table by the length of its history, beside delta-rs itself.

    python benchmarks/tables.py [COMMITS...]     100 1000 10000 by default

Each commit names one file. CPU is that of this process, for the commit alone; a commit with a
checkpoint is among them once in a hundred. delta-rs commits the same to the same table.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from statistics import median

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from millrace.config import Config
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.table_port import TableFile

ROWS = pa.table({"x": list(range(1000))})
MEASURED, THEIRS = 100, 10


def main(lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target, config = DeltaTarget(uri=f"{folder}/t"), Config()
        target.check(ROWS.schema, config, who="benchmark")
        files = target.writer(ROWS.schema, config, who="benchmark").write([ROWS], "f")
        commits = target.commits("benchmark", config)
        place = 0
        print("commits of history | CPU ms, median | CPU ms, mean with checkpoints | delta-rs")
        for length in lengths:
            took: list[float] = []
            while place < length:
                named = [_as(file, place) for file in files]
                begun = time.process_time()
                commits.commit(named, before=place or None, place=place + 1)
                took.append((time.process_time() - begun) * 1000)
                place += 1
            last = took[-MEASURED:]
            theirs = median(by_delta_rs(f"{folder}/t") for _ in range(THEIRS))
            print(f"{length} | {median(last):.2f} | {sum(last) / len(last):.2f} | {theirs:.1f}")


def _as(file: TableFile, number: int) -> TableFile:
    """The file under another name in the log, so that the table has more and more files."""
    about = json.loads(file.about)
    about["add"]["path"] = f"f-{number}.parquet"
    return replace(file, about=json.dumps(about))


def by_delta_rs(uri: str) -> float:
    """The CPU in milliseconds of a commit by a process that has to look at the table first."""
    begun = time.process_time()
    table = DeltaTable(uri)
    add = AddAction("f-0.parquet", 1, {}, 0, data_change=True, stats='{"numRecords": 0}')
    properties = CommitProperties(app_transactions=[Transaction("other", time.time_ns())])
    table.create_write_transaction([add], "append", table.schema(), commit_properties=properties)
    return (time.process_time() - begun) * 1000


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [100, 1000, 10_000])
