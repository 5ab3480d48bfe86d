"""A streaming application killed with SIGKILL: each batch id keeps its rows, each row comes once.

Run as a program, this file is that application.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.laws import seeds

import millrace as mr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
READ = {"name": "killed", "bindings": [{"name": "all", "prefix": "t", "key": ["key"]}]}
JOURNALS = ("t/a", "t/b")
ROWS = 4
"""Of a transaction in each journal."""
MORE = 15
"""Transactions that are written before each start, so that there is always a batch to begin."""
ROOT = Path(__file__).parents[2]
WAIT_S = 600
"""For an application to end, on a busy machine."""
BEFORE, AFTER = "before", "after"


def main(workspace: str, out: str, wanted: int, moment: str, batches: int) -> None:
    """Stream until so many rows are kept; die before or after keeping a batch, if told to."""
    from millrace.spark.session import start_session

    spark = start_session("killed", cores=2)
    mr.register(spark)
    left = batches

    def take(frame: DataFrame, number: int) -> None:
        nonlocal left
        left -= 1
        rows = sorted(list(row) for row in frame.select("_mr_journal", "key", "amount").collect())
        if left == 0 and moment == BEFORE:
            os.killpg(0, signal.SIGKILL)
        keep(Path(out) / f"{number}.json", rows)
        if left == 0 and moment == AFTER:
            os.killpg(0, signal.SIGKILL)

    stream = (
        spark.readStream.format("millrace")
        .option("path", workspace)
        .option("read", json.dumps(READ))
        .option("maxRowsPerTrigger", "100")
        .load()
    )
    sink = stream.writeStream.foreachBatch(take)
    sink = sink.option("checkpointLocation", str(Path(out) / "log"))
    query = sink.start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while kept(Path(out)) < wanted:
        if not query.isActive:
            # On a busy machine Spark gives up on processes that begin slowly.
            assert "failed to connect back" in str(query.exception()), query.exception()
            query = sink.start()
        time.sleep(0.1)
    query.stop()
    os.killpg(0, signal.SIGKILL)  # Nothing that is orderly may be needed.


def keep(path: Path, rows: list[list[object]]) -> None:
    """Store rows under a batch id; the same id must have the same rows for good."""
    if path.exists():
        before = json.loads(path.read_text())
        assert before == rows, f"{path.name} had {before}, and now {rows}"
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows))
    fresh.rename(path)


def kept(folder: Path) -> int:
    """How many rows are kept."""
    return sum(len(json.loads(path.read_text())) for path in folder.glob("*.json"))


def write(workspace: Path, numbers: range) -> None:
    """A transaction over both journals for each number."""
    with mr.open(workspace) as ws:
        for name in JOURNALS:
            ws.journals.create(name, SCHEMA)
        with ws.journals.producer("writer") as writer:
            for number in numbers:
                rows = pa.table({"key": range(ROWS), "amount": [number] * ROWS}, schema=SCHEMA)
                for name in JOURNALS:
                    writer.append(name, rows)
                writer.commit()


class Application:
    """Runs the program above, again and again, each time with more to read."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.out = folder / "mill", folder / "out"
        self.out.mkdir()
        self.transactions = 0

    def start(self, moment: str = "", batches: int = 0) -> subprocess.Popen[str]:
        more = range(self.transactions, self.transactions + MORE)
        self.transactions = more.stop
        write(self.workspace, more)
        wanted = 2 * ROWS * self.transactions
        args = [str(self.workspace), str(self.out), str(wanted), moment, str(batches)]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.Popen(
            [sys.executable, __file__, *args],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def die_in(self, moment: str, batches: int) -> None:
        child = self.start(moment, batches)
        said = self._ended(child)
        assert "had [" not in said, said
        assert child.returncode == -signal.SIGKILL, said

    def kill_after(self, pause_s: float) -> None:
        child = self.start()
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n", child.communicate()
        time.sleep(pause_s)
        with contextlib.suppress(ProcessLookupError):  # It may be through already.
            os.killpg(child.pid, signal.SIGKILL)
        said = self._ended(child)
        assert "had [" not in said, said

    def finish(self) -> None:
        """Let it read everything, then compare with what was written."""
        child = self.start()
        said = self._ended(child)
        assert child.returncode == -signal.SIGKILL, said
        batches = [json.loads(path.read_text()) for path in self.out.glob("*.json")]
        numbers = range(self.transactions)
        every = [[name, key, n] for name in JOURNALS for key in range(ROWS) for n in numbers]
        assert sorted(row for rows in batches for row in rows) == sorted(every)
        for rows in batches:
            for number in {row[2] for row in rows}:
                assert sum(row[2] == number for row in rows) == 2 * ROWS, (number, rows)

    def _ended(self, child: subprocess.Popen[str]) -> str:
        """Wait until it has died; what it said about errors."""
        try:
            return child.communicate(timeout=WAIT_S)[1]
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise


@pytest.mark.slow  # The test command kills a query that reads and writes: test_source_write_kills.
def test_killed_while_it_runs_each_batch_keeps_its_rows_and_each_row_comes_once(
    tmp_path: Path,
) -> None:
    app = Application(tmp_path)
    app.die_in(BEFORE, 1)  # In the offset log, and nowhere else.
    app.die_in(AFTER, 2)  # That batch again, then a new one: in the sink, not in the commit log.
    app.finish()
    assert len(list(app.out.glob("*.json"))) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_killed_many_times_it_is_exact(seed: int, tmp_path: Path) -> None:
    app = Application(tmp_path)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    for _ in range(6):
        if chance.random() < 0.5:
            app.die_in(chance.choice((BEFORE, AFTER)), 1)
        else:
            app.kill_after(chance.uniform(0.2, 6))
    app.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
