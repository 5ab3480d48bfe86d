"""Applications on a cluster that can be killed and started again, each with its own judge.

The judges know nothing of the product: DuckDB reads the same input, a paid API counts what it was
asked, and what was written is compared with what came.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.cluster.job_kit import PaidApi
from tests.standalone.cluster import Cluster
from tests.standalone.session import (
    JOURNALS,
    ROWS,
    check_transactions,
    kept,
    write_transactions,
)

import millrace as mr

PROGRAMS: Final = Path(__file__).parent / "programs"
WAIT_S: Final = 400
BATCH: Final = 4


class Application(ABC):
    """A program that runs on the cluster until its work is done."""

    program: str

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = cluster.layout.driver / name
        self.out = self.folder / "out"
        self.out.mkdir(parents=True)
        self.mill = self.folder / "mill"
        self.workers_lost = 0
        """How many tasks can have been killed while they worked."""
        self.started = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def arguments(self) -> list[str]:
        """Of the program."""

    @abstractmethod
    def progress(self) -> int:
        """Grows while it works, by whatever count."""

    @abstractmethod
    def check(self) -> None:
        """Whether what it left is exactly right."""

    def start(self) -> None:
        """Start it, or go on after it was killed."""
        self.started += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.cluster.prefix,
                    sys.executable,
                    str(PROGRAMS / self.program),
                    *self.arguments(),
                ],
                env=self.cluster.driver_environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver alone, without a word; its executors and Python workers are left behind."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # It may be through already.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def has_ended(self) -> bool:
        """Whether it is through; an error if it failed."""
        if self._process is None or self._process.poll() is None:
            return False
        assert self._process.returncode == 0, f"{self.name} failed\n{self.said()}"
        return True

    def wait_for(self, progress: int) -> bool:
        """Wait until it is so far; False if it has ended before."""
        until = time.monotonic() + WAIT_S
        while self.progress() < progress:
            if self.has_ended():
                return False
            assert time.monotonic() < until, (
                f"{self.name} is at {self.progress()} of {progress}\n{self.said()}"
            )
            time.sleep(0.02)
        return not self.has_ended()

    def finish(self) -> None:
        """Wait for its end, then look at what it left."""
        self.wait()
        self.check()

    def wait(self) -> None:
        """Wait for its end."""
        until = time.monotonic() + WAIT_S
        while not self.has_ended():
            assert time.monotonic() < until, f"{self.name} does not end\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-6000:]

    @property
    def _log(self) -> Path:
        return self.cluster.layout.root / f"{self.name}.log"


class DatasetApplication(Application):
    """A join, a group-by and a window: several exchanges."""

    program = "dataset.py"
    query = """
        WITH totals AS (
            SELECT nation, day, sum(amount)::BIGINT AS total, count(*) AS n
            FROM '{0}/orders/*.parquet' JOIN '{0}/customers/*.parquet' USING (cust)
            GROUP BY nation, day
        )
        SELECT nation, day, total, n,
            row_number() OVER (PARTITION BY nation ORDER BY total DESC, day) AS place,
            sum(total) OVER (PARTITION BY nation ORDER BY total DESC, day)::BIGINT AS running
        FROM totals ORDER BY ALL
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        seed: int = 0,
        files: int = 9,
        *,
        and_placed: bool = False,
    ) -> None:
        super().__init__(cluster, name)
        self.and_placed = and_placed
        """Whether it also looks where Spark finds rows; no host may go away meanwhile."""
        self.inputs = cluster.layout.inputs / name
        write_orders(self.inputs, seed, files)

    def arguments(self) -> list[str]:
        """See `Application`."""
        return [str(self.mill), str(self.inputs), str(self.out), "yes" if self.and_placed else "no"]

    def progress(self) -> int:
        """How many map outputs there are."""
        pattern = "shuffle/*/*/*/*/index.bin"
        folders = [self.mill]
        with contextlib.suppress(FileNotFoundError, ValueError):
            known = json.loads((self.mill / "workspace.json").read_text())["id"]
            folders += self.cluster.layout.root.glob(f"host-*/mill/{known}")
        return sum(1 for folder in folders for _ in folder.glob(pattern))

    def report(self) -> list[tuple[int, int]]:
        """For each stage how many map tasks ran in the last run, and how many were reused."""
        return [(ran, reused) for ran, reused in json.loads((self.out / "report.json").read_text())]

    def check(self) -> None:
        """As DuckDB has it."""
        found = pq.read_table(self.out / "answer.parquet")
        expected = duckdb.connect().execute(self.query.format(self.inputs)).fetchall()
        names = ["nation", "day", "total", "n", "place", "running"]
        order = [(name, "ascending") for name in names]
        rows = found.select(names).sort_by(order).to_pylist()
        assert [tuple(row.values()) for row in rows] == expected


class JobApplication(Application):
    """An expensive step that asks a paid API, and a sink."""

    program = "job.py"

    def __init__(self, cluster: Cluster, name: str, api: PaidApi, rows: int = 60) -> None:
        super().__init__(cluster, name)
        self.api, self.rows = api, rows
        self.sink = str(self.folder / "answers") if cluster.layout.is_shared else "journal"

    def arguments(self) -> list[str]:
        """See `Application`."""
        out, rows = str(self.out), str(self.rows)
        return [str(self.mill), out, self.api.url, rows, str(BATCH), self.sink]

    def progress(self) -> int:
        """How many questions were asked."""
        return len(self.api.asked)

    def answers(self) -> list[tuple[int, str]]:
        """What came out, in order."""
        if self.sink == "journal":
            with mr.open(self.mill) as ws:
                names = [info.name for info in ws.journals.list("answers")]
                tables = [ws.journals.read(name, 0).rows() for name in names]
        else:
            tables = [pq.read_table(file) for file in Path(self.sink).glob("*.parquet")]
        rows = [row for table in tables for row in table.select(["id", "answer"]).to_pylist()]
        return sorted((row["id"], row["answer"]) for row in rows)

    def check(self) -> None:
        """Every answer once, and every question once but for those in doubt."""
        assert self.answers() == [(n, f"answer {n}") for n in range(self.rows) if n % 5]
        report = json.loads((self.out / "report.json").read_text())
        step = next(step for step in report["steps"] if step["name"] == "ask")
        counts = self.api.counts()
        assert set(counts) == set(range(self.rows)), "every row was asked for"
        asked = counts.total()
        assert asked - self.rows <= step["in_doubt"] <= self.workers_lost * BATCH
        assert asked <= step["calls"] == self.rows + step["in_doubt"]
        assert max(map(len, self.api.keys().values())) == 1, "a row has one key, whoever asks"


class ReadsApplication(Application):
    """Coordinated reads over two journals, with members on Spark."""

    program = "reads.py"
    pause_s = 0.1

    def __init__(self, cluster: Cluster, name: str, transactions: int = 100) -> None:
        super().__init__(cluster, name)
        self.transactions = 0
        self.write(transactions)

    def write(self, more: int) -> None:
        """Have more to read."""
        numbers = range(self.transactions, self.transactions + more)
        write_transactions(self.mill, numbers)
        self.transactions = numbers.stop

    def arguments(self) -> list[str]:
        """See `Application`."""
        wanted = str(len(JOURNALS) * ROWS * self.transactions)
        return [str(self.mill), str(self.out), wanted, str(self.pause_s)]

    def progress(self) -> int:
        """How many rows are kept."""
        return kept(self.out)

    def check(self) -> None:
        """Every row once, and transactions whole."""
        check_transactions(self.out, self.transactions)
        assert len(list(self.out.glob("*.json"))) > 2, "in several parts"


class StreamApplication(ReadsApplication):
    """Structured Streaming over two journals."""

    program = "stream.py"

    def arguments(self) -> list[str]:
        """See `Application`."""
        mill, out, wanted, pause = super().arguments()
        return [mill, out, str(self.folder / "log"), wanted, pause]


def write_orders(folder: Path, seed: int, files: int) -> None:
    """Orders with customers, some of which are unknown, and days."""
    random = np.random.default_rng(seed)
    count, customers = 2_000 * files, 900
    orders = pa.table(
        {
            "cust": random.integers(0, 1_000, count),
            "day": random.integers(0, 40, count),
            "amount": random.integers(-5, 1_000, count),
        }
    )
    known = pa.table({"cust": np.arange(customers), "nation": np.arange(customers) % 25})
    for name, table, parts in (("orders", orders, files), ("customers", known, 3)):
        (folder / name).mkdir(parents=True)
        each = -(-table.num_rows // parts)
        for number in range(parts):
            pq.write_table(table.slice(number * each, each), folder / name / f"{number}.parquet")
