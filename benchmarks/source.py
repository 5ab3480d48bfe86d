"""`format("millrace")` beside Spark's own Parquet, in the same session and over the same rows.

    .venv/bin/python benchmarks/source.py [--rows 250000] [--times 1 2 4 8] [--only journal]

Batches: a DataFrame into a journal beside `write.parquet`, into a keyed shuffle beside
`repartition(n, key).write.parquet`, and both read again beside `read.parquet`, with sums that need
every column. Streams: journals with `availableNow` beside Spark's file stream over Parquet, both
into a sink that drops the rows. This process owns the journals, as `millrace serve` would.

Parquet is written compressed and in columns, which is what makes it cheap for Spark to read; rows
of the data source pass through Python. A ratio above 1 means that Millrace is faster. Times are the
best of several rounds. A table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark import register
from millrace.spark.session import start_session

FILES: Final = 8
PARTITIONS: Final = 8
JOURNALS: Final = 4
ROUNDS: Final = 2
KEYS: Final = 100_000
WAIT_S: Final = 300

Case = tuple[str, Callable[[], object], Callable[[], object]]
"""What is measured, with Millrace and with its peer; each gives what must be equal."""


def make_files(folder: Path, rows: int) -> None:
    """Values that cannot be packed, so that no side can leave them out."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        random = np.random.default_rng(number)
        count = rows // FILES
        key = random.integers(0, KEYS, count)
        table = pa.table(
            {
                "key": key,
                "a": random.integers(0, 1 << 40, count),
                "b": random.random(count),
                "name": np.char.add("customer-", key.astype("U7")),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")


class Sides:
    """Both sides over rows of one size, each in folders of its own."""

    def __init__(self, spark: SparkSession, ws: mr.Workspace, folder: Path, rows: int) -> None:
        self._spark = spark
        self._ws = ws
        self._folder = folder
        self._given = str(folder / "given")
        self._rounds = 0
        make_files(folder / "given", rows)
        self.rows = rows // FILES * FILES

    def cases(self) -> list[Case]:
        """Writes first: what they wrote is read after that."""
        return [
            ("write a journal", self._write_journal, self._write_parquet),
            ("write a shuffle", self._write_shuffle, self._write_by_key),
            ("read a journal", self._read_journal, lambda: self._sums("plain")),
            ("read a shuffle", self._read_shuffle, lambda: self._sums("by-key")),
            ("stream journals", self._stream_journals, self._stream_files),
        ]

    def _frame(self) -> DataFrame:
        return self._spark.read.parquet(self._given)

    def _new(self, what: str) -> str:
        """A name that was not used before."""
        self._rounds += 1
        return f"{what}-{self.rows}-{self._rounds}"

    def _write_journal(self) -> None:
        self._journal = self._new("journal")
        self._save(self._frame(), journal=self._journal)

    def _write_shuffle(self) -> None:
        self._shuffle = self._new("shuffle")
        self._save(self._frame(), shuffle=self._shuffle, keyBy="key", partitions=PARTITIONS)

    def _save(self, frame: DataFrame, **options: object) -> None:
        texts = {name: str(value) for name, value in options.items()}
        frame.write.format("millrace").mode("append").options(**texts).save(self._ws.path)

    def _write_parquet(self) -> None:
        self._frame().write.mode("overwrite").parquet(str(self._folder / "plain"))

    def _write_by_key(self) -> None:
        by_key = self._frame().repartition(PARTITIONS, "key")
        by_key.write.mode("overwrite").parquet(str(self._folder / "by-key"))

    def _read_journal(self) -> object:
        return self._of_all(self._load(journal=self._journal))

    def _read_shuffle(self) -> object:
        return self._of_all(self._load(shuffle=self._shuffle))

    def _load(self, **options: str) -> DataFrame:
        return self._spark.read.format("millrace").options(**options).load(self._ws.path)

    def _sums(self, folder: str) -> object:
        return self._of_all(self._spark.read.parquet(str(self._folder / folder)))

    def _of_all(self, frame: DataFrame) -> object:
        (row,) = frame.agg(
            F.sum("key"), F.sum("a"), F.round(F.sum("b")), F.sum(F.length("name"))
        ).collect()
        return tuple(row)

    def _stream_journals(self) -> None:
        prefix = f"many-{self.rows}"
        if not self._ws.journals.list(prefix):
            self._save(self._frame(), journals=prefix + "/{n}", keyBy="key", partitions=JOURNALS)
        binding = {"name": "all", "prefix": prefix, "key": ["key"]}
        read = json.dumps({"name": self._new("read"), "bindings": [binding]})
        reader = self._spark.readStream.format("millrace").option("read", read)
        self._drain(reader.option("members", 2).load(self._ws.path))

    def _stream_files(self) -> None:
        reader = self._spark.readStream.schema(self._frame().schema)
        self._drain(reader.parquet(self._given))

    def _drain(self, stream: DataFrame) -> None:
        log = str(self._folder / self._new("log"))
        writer = stream.writeStream.format("noop").option("checkpointLocation", log)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S), "the stream did not end"
        found = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert found == self.rows, (found, self.rows)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def compare(case: Case, rows: int) -> dict[str, Any]:
    """Round by round in turns; the first round warms both and is dropped."""
    name, mine, peers = case
    ours, theirs = [], []
    for number in range(ROUNDS + 1):
        millrace_s, found = timed(mine)
        peer_s, expected = timed(peers)
        assert found == expected, (name, found, expected)
        if number:
            ours.append(millrace_s)
            theirs.append(peer_s)
    return {
        "benchmark": "source",
        "case": f"{name}, {rows:,} rows",
        "rows": rows,
        "millrace_s": round(min(ours), 3),
        "peer_s": round(min(theirs), 3),
        "millrace_rows_per_s": round(rows / min(ours)),
        "ratio": round(min(theirs) / min(ours), 2),
    }


def shown(found: Mapping[str, Any]) -> list[str]:
    return [f"{v:,}" if isinstance(v, int) else str(v) for k, v in found.items() if k != "rows"][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--times", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--only", help="cases whose name has this in it; reads need their writes")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir="."))
    spark = start_session("source")
    register(spark)
    table = Table("case", "Millrace s", "Parquet s", "rows/s", "ratio", title="format('millrace')")
    try:
        with mr.open(folder / "mill", spark, create=True) as ws:
            assert ws.journals.list() == ()  # Now this process owns them.
            for times in asked.times:
                sides = Sides(spark, ws, folder / str(times), asked.rows * times)
                for case in sides.cases():
                    if asked.only is None or asked.only in case[0]:
                        found = compare(case, sides.rows)
                        print(json.dumps(found), flush=True)
                        table.add_row(*shown(found))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    Console(stderr=True, width=120).print(table)


if __name__ == "__main__":
    main()
