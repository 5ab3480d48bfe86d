"""A job of several steps while workers, drivers and the owner of its journals are killed at random.

The judges know nothing of the product: the paid API, which counts what it was asked, and DuckDB,
which reads what came out. The seed decides who is killed when.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import duckdb
import pytest
from tests.cluster.job_kit import PaidApi, paid_api
from tests.laws import seeds

pytestmark = pytest.mark.spark
ROWS: Final = 120
BATCH: Final = 4
WORKERS: Final = 2
WAIT_S: Final = 900
PROGRAM: Final = """
import json, sys, urllib.request
import millrace as mr
from millrace.spark.session import start_session

mill, out, url, rows = sys.argv[1:5]

def twins(row: dict) -> list:
    return [{"id": row["id"] * 2}, {"id": row["id"] * 2 + 1}] if row["id"] % 3 else []

def ask(row: dict, context: mr.Context) -> dict:
    data = json.dumps({"id": row["id"], "key": context.key}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as answer:
        return {"id": row["id"], "answer": json.loads(answer.read())["answer"]}

spark = start_session(cores=2)
config = mr.Config(job_run_lease=5, job_lease=5, job_watch_ms=50)
ws = mr.open(mill, spark, config=config)
job = ws.job("chaos")
source = job.source("rows", spark.range(int(rows)), partitions=2)
halves = source.map("twins", twins, schema="id bigint", version="1")
asked = halves.filter("id % 7 <> 0").map(
    "ask", ask, schema="id bigint, answer string", expensive=True, batch_rows=4, version="1"
)
asked.sink_parquet(out + "/all", name="all")
asked.key_by("id", partitions=3).filter("id % 2 = 0").sink_parquet(out + "/even", name="even")
print("REPORT " + job.run().to_json(), flush=True)
ws.close()
spark.stop()
"""


def expected() -> set[int]:
    made = [n * 2 + half for n in range(ROWS) if n % 3 for half in (0, 1)]
    return {number for number in made if number % 7}


class Chaos:
    """Starts what died, and kills what lives, as the seed says."""

    def __init__(self, folder: Path, api: PaidApi, seed: int) -> None:
        self.folder, self.api, self.random = folder, api, random.Random(seed)  # noqa: S311 - a test's
        self.kills: Counter[str] = Counter()
        self.owner = self.start_owner()
        self.driver = self.start_driver()

    def start_owner(self) -> subprocess.Popen[bytes]:
        millrace = str(Path(sys.executable).parent / "millrace")
        told = self.folder / f"serve-{time.monotonic_ns()}.log"
        with told.open("wb") as out:
            owner = subprocess.Popen(
                [millrace, "serve", str(self.folder / "mill")],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # It says where it answers, or ends: the driver may have taken over meanwhile.
        while owner.poll() is None and not told.stat().st_size:
            time.sleep(0.02)
        return owner

    def start_driver(self) -> subprocess.Popen[str]:
        folder, url = self.folder, self.api.url
        command = [sys.executable, "-c", PROGRAM, str(folder / "mill"), str(folder / "out"), url]
        return subprocess.Popen(
            [*command, str(ROWS)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def run(self, kills: int) -> None:
        """Kill that often, each time after some more questions, then let it come to its end."""
        until = time.monotonic() + WAIT_S
        for _ in range(kills):
            goal = len(self.api.asked) + self.random.randrange(3, 25)
            while len(self.api.asked) < goal and not self._ended():
                assert time.monotonic() < until, f"stuck after {len(self.api.asked)} questions"
                self._restart()
                time.sleep(0.02)
            if self._ended():
                break
            self._kill(self.random.choice(("worker", "worker", "driver", "owner")))
        while not self._ended():
            assert time.monotonic() < until, f"stuck after {len(self.api.asked)} questions"
            self._restart()
            time.sleep(0.05)

    def close(self) -> None:
        for process in (self.driver, self.owner):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def _ended(self) -> bool:
        return self.driver.poll() == 0

    def _restart(self) -> None:
        if self.driver.poll() in (None, 0):
            return
        if self.owner.poll() is not None:
            self.owner = self.start_owner()
        self.driver = self.start_driver()

    def _kill(self, whom: str) -> None:
        if whom == "worker":
            workers = _workers(self.driver.pid)
            if not workers:
                return
            os.kill(self.random.choice(workers), signal.SIGKILL)
        else:
            served = whom == "owner" and self.owner.poll() is None
            process = self.owner if served else self.driver
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self.kills[whom] += 1


def _workers(session: int) -> list[int]:
    """The processes that run Python functions for a driver: children of a child of Spark's."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            command = Path(entry.path, "cmdline").read_bytes()
            parent = Path(f"/proc/{stat[1]}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[3]) == session and b"pyspark.daemon" in command and b"pyspark.daemon" in parent:
            found.append(int(entry.name))
    return sorted(found)


@pytest.mark.slow  # tests/standalone kills hosts and drivers of a job in the test command.
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 3), *((seed, 8) for seed in seeds(4, first=2))],
)
def test_whoever_is_killed_rows_come_out_once_and_are_paid_for_once(
    tmp_path: Path, seed: int, kills: int
) -> None:
    with paid_api(0.02) as api:
        chaos = Chaos(tmp_path, api, seed)
        try:
            chaos.run(kills)
        finally:
            chaos.close()
        killed = chaos.kills

    wanted = expected()
    reader = duckdb.connect()
    select = "SELECT id, answer FROM '{}/out/{}/*.parquet'"
    everything = reader.execute(select.format(tmp_path, "all")).fetchall()
    even = reader.execute(select.format(tmp_path, "even")).fetchall()
    assert sorted(everything) == sorted((n, f"answer {n}") for n in wanted)
    assert sorted(even) == sorted((n, f"answer {n}") for n in wanted if n % 2 == 0)
    counts = api.counts()
    assert set(counts) == wanted, "nothing is asked that was filtered out"
    # A worker loses one batch; with a driver or an owner all workers may.
    twice = counts.total() - len(wanted)
    lost = killed["worker"] + WORKERS * (killed["driver"] + killed["owner"])
    assert twice <= BATCH * lost, f"{twice} paid twice after {dict(killed)}"
    assert max(map(len, api.keys().values())) == 1, "a row has one key, whoever asks"
