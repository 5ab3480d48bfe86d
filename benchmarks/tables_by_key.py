"""The cost of replacing rows of a Delta table by key, beside delta-rs's merge.

    python benchmarks/tables_by_key.py

A table of 4 million rows in 20 files; 10,000 rows by key go into it: keys that it has not, keys of
one file, and keys of every file. CPU is that of this process, for writing the rows and committing.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from millrace.config import Config
from millrace.engine.row_choices.key_rows import key_rows_maker
from millrace.tables.delta.delta_target import DeltaTarget

FILES, ROWS, GIVEN, TIMES = 20, 200_000, 10_000, 3
CONFIG = Config()


def main() -> None:
    """Print a line for each kind of keys."""
    every = np.arange(0, FILES * ROWS, FILES * ROWS // GIVEN)
    kinds = {
        "keys that are not there": np.arange(FILES * ROWS, FILES * ROWS + GIVEN),
        "keys of one file": np.arange(5 * ROWS, 5 * ROWS + GIVEN),
        "keys of every file": every,
    }
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            commit(f"{folder}/t", rows(np.arange(number * ROWS, (number + 1) * ROWS)), number)
        print("rows by key | CPU s | delta-rs, CPU s")
        for kind, keys in kinds.items():
            given = rows(keys)
            ours, theirs = (median(taken(folder, merge, given)) for merge in (upsert, merged))
            print(f"{kind} | {ours:.2f} | {theirs:.2f}")


def rows(keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """Rows with these keys."""
    return pa.table({"k": keys, "v": pa.array([f"value {key}" for key in keys.tolist()])})


def taken(folder: str, merge: Callable[[str, pa.Table], None], given: pa.Table) -> list[float]:
    """The CPU seconds of a merge into a copy of the table, some times."""
    times: list[float] = []
    for _ in range(TIMES):
        shutil.copytree(f"{folder}/t", f"{folder}/copy")
        begun = time.process_time()
        merge(f"{folder}/copy", given)
        times.append(time.process_time() - begun)
        shutil.rmtree(f"{folder}/copy")
    return times


def commit(uri: str, given: pa.Table, place: int, *keys: str) -> None:
    """Append rows, or put them in place of those with their keys."""
    target = replace(DeltaTarget(uri=uri), keys=keys, later_wins=True)
    target.check(given.schema, CONFIG, who="benchmark")
    files = target.writer(given.schema, CONFIG, who="benchmark").write([given], f"part-{place}")
    commits = target.commits("benchmark", CONFIG, key_rows_maker(CONFIG))
    assert commits.commit(files, before=commits.place(), place=place + 1) is not None


def upsert(uri: str, given: pa.Table) -> None:
    """By Millrace."""
    commit(uri, given, FILES, "k")


def merged(uri: str, given: pa.Table) -> None:
    """By delta-rs."""
    merger = DeltaTable(uri).merge(given, "t.k = s.k", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


if __name__ == "__main__":
    main()
