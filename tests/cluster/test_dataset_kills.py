"""A join and a group-by, killed at every point: the next application pays for what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.laws import some

import millrace as mr
from millrace.faults import VARIABLE
from millrace.ids import AttemptId
from millrace.shuffle import reader
from millrace.spark.session import start_session
from millrace.testing.fault_injection import POINTS, armed
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
FILES = 3
LAST = 3
DESCRIBED = """
import os, sys, millrace as mr
from millrace.errors import MillraceError
from millrace.spark.session import start_session
config = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=20_000,
    read_together_bytes_max=1,
    stages_at_once_max=1,
)
def described(ws, folder):
    left, right = ws.read_parquet(folder + "/left"), ws.read_parquet(folder + "/right")
    joined = left.join(right, on="k", how="full")  # Stages in one order, whatever their size.
    return joined.group_by("g").agg(total="sum(v)", n="count(*)")
"""
ONE_QUERY = f"""{DESCRIBED}
folder, mill = sys.argv[1:]
described(mr.open(mill, start_session(cores=2), config=config), folder).run()
print("finished", flush=True)
"""
A_LOST_OUTPUT = f"""{DESCRIBED}
from millrace.execute import query_run
from pathlib import Path
folder, mill = sys.argv[1:]
real = query_run.run_stage
def lossy(runner, workspace, work, *, check):
    done = real(runner, workspace, work, check=check)
    if done.stage_id == 0:
        chosen = done.manifest.chosen[1]
        for part in Path(mill, "shuffle", str(chosen.attempt)).glob("data.ipc"):
            part.unlink()
    return done
query_run.run_stage = lossy
described(mr.open(mill, start_session(cores=2), config=config), folder).run()
"""
MANY_QUERIES = f"""{DESCRIBED}
folder, mills = sys.argv[1:3]
spark = start_session(cores=2)
for point in sys.argv[3:]:
    with open(os.environ["MILLRACE_FAULT"][1:], "w") as arm:
        arm.write(point)
    try:
        described(mr.open(os.path.join(mills, point), spark, config=config), folder).run()
    except MillraceError as error:
        print(point, type(error).__name__, flush=True)
    else:
        print(point, "finished", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    random = np.random.default_rng(3)
    left = pa.table({"k": random.integers(0, 500, 6000), "v": random.integers(0, 9, 6000)})
    right = pa.table({"k": np.arange(500), "g": np.arange(500) % 50})
    for name, table in (("left", left), ("right", right)):
        (folder / name).mkdir()
        for number in range(FILES):
            each = table.num_rows // FILES + 1
            pq.write_table(table.slice(number * each, each), folder / name / f"{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("millrace-kills", cores=2)
    yield session
    session.stop()


def expected(folder: Path) -> list[tuple[int, ...]]:
    query = (
        f"SELECT g, sum(v)::BIGINT, count(*) FROM '{folder}/left/*.parquet' "
        f"FULL JOIN '{folder}/right/*.parquet' USING (k) GROUP BY g ORDER BY g"
    )
    return duckdb.connect().execute(query).fetchall()


def finished_tasks(ws: mr.Workspace) -> dict[int, set[int]]:
    """For each stage the map tasks that some run finished, by what lies on the disk."""
    found: dict[int, set[int]] = {number: set() for number in range(LAST + 1)}
    for path in Path(ws.path, "shuffle").glob("*/*/*/*"):
        if path.is_dir():
            run, stage, task, attempt = map(int, path.parts[-4:])
            if (
                reader.find_index(runtime_of(ws).store, AttemptId.of(run, stage, task, attempt))
                is not None
            ):
                found[stage].add(task)
    return found


def resume(spark: SparkSession, folder: Path, mill: Path) -> list[tuple[int, int]]:
    """Run the query in this application; returns for each stage what ran and what was reused."""
    names: dict[str, object] = {}
    exec(DESCRIBED, names)  # noqa: S102 - the same text that the killed application ran
    ws = mr.open(mill, spark, config=names["config"])  # type: ignore[arg-type]
    finished = finished_tasks(ws)
    query = names["described"](ws, str(folder))  # type: ignore[operator]

    reports = query.run().stages

    rows = sorted(tuple(row.values()) for row in query.to_arrow().to_pylist())
    assert rows == expected(folder)
    done = [(report.ran, report.reused) for report in reports]
    missing = [r.map_tasks - len(finished[n]) for n, r in enumerate(reports)]
    assert [ran for ran, _ in done] == missing, "just what was not finished is run"
    return done


def kill(program: str, folder: Path, mill: Path, env: dict[str, str]) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(mill)],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]


# Where the driver is killed, and the stages that are finished then.
DRIVER = [("shuffle.driver.after_tasks", 2, [0, 1, 2])]
DRIVER_SLOW = [
    ("shuffle.driver.before_manifest", 3, [0, 1, 2, 3]),
    ("dataset.driver.before_stage", 2, [0, 1]),
    ("dataset.driver.before_stage", 0, []),
    ("dataset.driver.before_stage", 3, [0, 1, 2]),
    ("dataset.driver.after_stage", 0, [0]),
    ("dataset.driver.after_stage", 2, [0, 1, 2]),
    ("shuffle.driver.after_rely", 0, []),
    ("shuffle.driver.after_rely", 2, [0, 1]),
    ("shuffle.driver.after_tasks", 0, [0]),
    ("shuffle.driver.after_tasks", 3, [0, 1, 2, 3]),
    ("shuffle.driver.before_manifest", 1, [0, 1]),
    ("shuffle.driver.after_manifest", 0, [0]),
    ("shuffle.driver.after_manifest", 2, [0, 1, 2]),
    ("shuffle.driver.after_manifest", 3, [0, 1, 2, 3]),
]


@pytest.mark.parametrize(
    ("point", "stage", "finished"),
    [*DRIVER, *(pytest.param(*case, marks=pytest.mark.slow) for case in some(DRIVER_SLOW))],
)
def test_a_driver_killed_at_any_point_loses_no_finished_task(
    spark: SparkSession, folder: Path, tmp_path: Path, point: str, stage: int, finished: list[int]
) -> None:
    kill(ONE_QUERY, folder, tmp_path / "mill", armed(point, stage=stage))

    done = resume(spark, folder, tmp_path / "mill")

    assert [number for number, (ran, _) in enumerate(done) if ran == 0] == finished
    assert [number for number, (_, reused) in enumerate(done) if reused == 0] == [
        number for number in range(LAST + 1) if number not in finished
    ]


@pytest.mark.slow
def test_a_driver_killed_before_it_repairs_what_is_lost(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    kill(A_LOST_OUTPUT, folder, tmp_path / "mill", armed("dataset.driver.before_repair"))
    # The lost output still has its index: it counts as finished until somebody looks for its rows.
    for index in Path(tmp_path, "mill", "shuffle", "1", "0", "1").glob("*/index.*"):
        index.unlink()

    (maps, *_) = resume(spark, folder, tmp_path / "mill")

    assert maps == (1, FILES - 1)


TASK = ["shuffle.write.between_indexes@1"]
TASK_SLOW = [
    f"{point}@{stage}"
    for point in POINTS
    if point.startswith(("shuffle.write.", "shuffle.task.", "shuffle.read."))
    for stage in range(LAST if "read" in point else LAST + 1)
    if f"{point}@{stage}" not in TASK
]


@pytest.mark.slow
@pytest.mark.parametrize("points", [TASK, TASK_SLOW], ids=["some", "all others"])
def test_tasks_killed_at_any_point_again_and_again_lose_no_finished_task(
    spark: SparkSession, folder: Path, tmp_path: Path, points: list[str]
) -> None:
    env = {**os.environ, VARIABLE: f"@{tmp_path / 'armed'}"}
    tried = subprocess.run(
        [sys.executable, "-c", MANY_QUERIES, str(folder), str(tmp_path), *points],
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr[-2000:]
    outcomes = dict(line.split() for line in tried.stdout.splitlines())
    assert list(outcomes) == points

    for point in points:
        done = resume(spark, folder, tmp_path / point)
        stage = int(point.partition("@")[2] or 0)
        if outcomes[point] == "finished":
            assert all(ran == 0 for ran, _ in done)
        elif not point.startswith("shuffle.read"):
            assert all(ran == 0 for ran, _ in done[:stage]), point
    # Killed before it is finished, a task never is; killed after, the next try finds it finished.
    for point, outcome in outcomes.items():
        before = ("task.start", "after_split", "before_index", "read")
        if any(name in point for name in before):
            assert outcome == "TaskFailed", point
