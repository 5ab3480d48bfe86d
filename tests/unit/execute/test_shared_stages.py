"""Rows that several stages read are made once, also after a loss, a kill, and in the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, NoFrames, start

import millrace as mr
from millrace.execute.query_run import QueryRun
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.plan.planner.exchanges import SEVERAL_READERS
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

CUT_UP = mr.Config(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partitions_max=2,
    partition_bytes_target=64,
    read_together_bytes_max=1,
)
BROADCAST = CUT_UP.with_options(broadcast_bytes_max=1 << 20)
QUERY = """
WITH totals AS (
    SELECT k % 5 AS part, k, sum(v) AS total FROM orders GROUP BY 1, 2
    UNION ALL SELECT k % 5, -k, max(v) FROM orders GROUP BY 1, 2)
SELECT a.part, a.k, b.k AS other, a.total - b.total AS more
FROM totals a JOIN totals b ON a.part = b.part AND a.k < b.k
WHERE a.total > 20 AND b.part > 1 AND a.part > (SELECT min(part) FROM totals)
ORDER BY 1, 2, 3
"""
ONE_ROW = """
SELECT (SELECT avg(v) FROM orders WHERE k < 5) AS a, (SELECT count(*) FROM orders WHERE k < 5) AS b,
    (SELECT coalesce(max(v), -1) + count(v) FROM orders WHERE k > 90) AS c,
    (SELECT count(DISTINCT v) FROM orders WHERE k BETWEEN 3 AND 6) AS d,
    (SELECT min(v) FROM orders WHERE v > 7) AS e, (SELECT sum(v) FROM orders) AS f
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(3):
        rows = {"k": [(number + row) % 17 for row in range(60)], "v": list(range(60))}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    return folder


def shuffles_of(ws: mr.Workspace, config: mr.Config) -> ShuffleWorkspace:
    folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
    agents = folders.agents(config, lambda _: None)
    return ShuffleWorkspace(
        store=runtime_of(ws).store,
        folders=folders,
        config=config,
        agents=agents,
        keep_alive=KeepAlive(agents),
    )


def run_query(mill: Path, orders: Path, config: mr.Config) -> QueryRun:
    with mr.open(mill, config=config, create=True) as ws:
        ws.view("orders", ws.read_parquet(orders))
        return start(shuffles_of(ws, config), ws.sql(QUERY), HereRunner())


def expected(orders: Path, text: str = QUERY) -> list[tuple[object, ...]]:
    with duckdb.connect() as db:
        db.execute(f"CREATE VIEW orders AS FROM '{orders}/*.parquet'")
        return db.sql(text).fetchall()


def rows_of(run: QueryRun) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in run.batches() for row in batch.to_pylist()]


def shared_stage(run: QueryRun) -> int:
    (number,) = [stage.number for stage in run.stages if stage.why == SEVERAL_READERS]
    return number


@pytest.mark.parametrize("text", [QUERY, ONE_ROW])
@pytest.mark.parametrize("config", [CUT_UP, BROADCAST, mr.Config()])
def test_the_answer_is_that_of_duckdb_and_the_next_run_reuses_all_of_it(
    orders: Path, tmp_path: Path, config: mr.Config, text: str
) -> None:
    with mr.open(tmp_path / "mill", config=config, create=True) as ws:
        ws.view("orders", ws.read_parquet(orders))
        shuffles, query = shuffles_of(ws, config), ws.sql(text)

        first = start(shuffles, query, HereRunner())
        second = start(shuffles, query, HereRunner())

        assert rows_of(first) == rows_of(second) == expected(orders, text)
        assert all(report.ran == 0 for report in second.report.stages)


def test_shared_rows_that_are_lost_are_made_again_once_for_all_readers(
    orders: Path, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", config=CUT_UP, create=True) as ws:
        ws.view("orders", ws.read_parquet(orders))
        shuffles, query = shuffles_of(ws, CUT_UP), ws.sql(QUERY)

        class LosesSharedRows(HereRunner):
            lost = False

            def run(self, *args: object, title: str, **more: object) -> pa.Table:
                if f"stage {number + 2} of" in title and not self.lost:
                    self.lost = True
                    (folder,) = Path(shuffles.store.root, "shuffle", "1").glob(str(number))
                    for file in folder.glob("*/*/data.ipc"):
                        file.unlink()
                return super().run(*args, title=title, **more)  # type: ignore[arg-type]

        number = shared_stage(QueryRun(HereRunner(), shuffles, NoFrames(query._plan), zone="UTC"))
        runner = LosesSharedRows()
        run = start(shuffles, query, runner)

        assert runner.lost
        assert rows_of(run) == expected(orders)
        assert run.report.stages[number].again
        repaired = [title for title in runner.titles if f"stage {number + 1} of" in title]
        assert len(repaired) == 2, "once for all that read it"


KILLED = """
import sys
from pathlib import Path
from tests.unit.execute.test_shared_stages import CUT_UP, rows_of, run_query, shared_stage
run = run_query(Path(sys.argv[1]), Path(sys.argv[2]), CUT_UP)
shared = run.report.stages[shared_stage(run)]
print(shared.ran, shared.reused)
print(rows_of(run))
"""


def test_a_query_that_is_killed_behind_its_shared_rows_reads_them_in_the_next_run(
    orders: Path, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "other", config=CUT_UP, create=True) as ws:
        ws.view("orders", ws.read_parquet(orders))
        frames = NoFrames(ws.sql(QUERY)._plan)
        number = shared_stage(QueryRun(HereRunner(), shuffles_of(ws, CUT_UP), frames, zone="UTC"))

    def run(fault: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"MILLRACE_FAULT": fault, "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "-c", KILLED, str(tmp_path / "mill"), str(orders)]
        return subprocess.run(command, env=env, check=False, capture_output=True, text=True)

    killed = run(f"dataset.driver.after_stage@{number}")
    resumed = run("")

    assert killed.returncode == -9, killed.stderr
    assert resumed.returncode == 0, resumed.stderr
    counts, rows = resumed.stdout.splitlines()
    ran, reused = map(int, counts.split())
    assert (ran, reused > 0) == (0, True)
    assert rows == str(expected(orders))
