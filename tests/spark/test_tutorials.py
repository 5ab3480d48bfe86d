"""Programs in the style of PySpark's tutorials run here, and their rows are Spark's.

With only the import changed; unchanged, through Spark Connect; and killed half-way, then resumed.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.laws import few_quick

import millrace as mr

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent / "tutorials"
NAMES = ("sessions", "dimension", "funnel", "features", "logs")
IMPORT = "from pyspark.sql import "
VIEW_TASKS = {"funnel": 4}
"""Map tasks that read temporary views of Spark, two files each: they may have changed, so each run
reads them again. What comes behind them is reused when their rows are the same."""
CUT_UP = mr.Config().with_options(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=20_000
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    chance = random.Random(3)  # noqa: S311 - a seed replays it
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    clicks = {
        "user": [chance.randrange(30) for _ in range(1500)],
        "ts": [start + dt.timedelta(seconds=chance.randrange(500_000)) for _ in range(1500)],
        "page": [chance.choice(["view", "view", "cart", "buy", "help"]) for _ in range(1500)],
        "spent": [chance.choice([None, 1.5, 2.25, 10.0]) for _ in range(1500)],
    }
    clicks_table = pa.table(clicks).cast(
        pa.schema(
            {
                "user": pa.int64(),
                "ts": pa.timestamp("us", "UTC"),
                "page": pa.string(),
                "spent": pa.float64(),
            }
        )
    )
    customers = {
        "cust": range(25),
        "city": [chance.choice(["Lima", None, "Rome"]) for _ in range(25)],
    }
    updates = {
        "cust": range(10, 40),
        "city": [chance.choice(["Lima", "Oslo", None]) for _ in range(30)],
        "day": [dt.date(2024, 5, 1 + n % 20) for n in range(30)],
    }
    lines = [
        '{"level": "%s", "msg": "%s took %d ms", "ms": %d}'  # noqa: UP031 - JSON has braces
        % (chance.choice(["INFO", "WARN"]), chance.choice(["Query", "Write to disk"]), n, n)
        for n in range(200)
    ]
    lines += ["not json", '{"level": "WARN"}', ""]
    for name, table in {
        "clicks": clicks_table,
        "customers": pa.table(customers),
        "updates": pa.table(updates),
        "lines": pa.table({"line": lines}),
    }.items():
        (out / name).mkdir()
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), out / name / "0.parquet")
        pq.write_table(table.slice(half), out / name / "1.parquet")
    return out


def program(name: str, *, package: str = "pyspark.sql") -> ModuleType:
    """A tutorial, with its imports of PySpark from another package."""
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert IMPORT in text
    text = text.replace(IMPORT, f"from {package} import ")
    if package == "millrace":
        text = text.replace("import DataFrame", "import Dataset as DataFrame")
    module = ModuleType(f"{name}_of_{package.replace('.', '_')}")
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - a program of ours
    return module


def rows_of(frame: Any) -> list[tuple[object, ...]]:  # noqa: ANN401 - a DataFrame or a Dataset
    return [tuple(row) for row in frame.collect()]


@pytest.mark.parametrize("name", few_quick(NAMES, 3))
def test_only_the_import_changes(
    name: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    expected = program(name).run(spark, str(folder))
    with mr.open(tmp_path / "mill", spark, config=CUT_UP, create=True) as ws:
        result = program(name, package="millrace").run(ws, str(folder))
        assert result.columns == expected.columns
        assert result.dtypes == expected.dtypes
        rows = rows_of(expected)
        assert rows_of(result) == rows
        assert rows


@pytest.mark.connect_only
@pytest.mark.parametrize("name", few_quick(NAMES, 2))
def test_unchanged_through_connect(
    name: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    frame = program(name).run(spark, str(folder))
    with mr.open(tmp_path / "mill", spark, config=CUT_UP, create=True) as ws:
        durable = ws.durable(frame)
        assert durable.columns == frame.columns
        assert rows_of(durable) == rows_of(frame)


CHANGED = """
import sys
from tests.spark.test_tutorials import CUT_UP, program
import millrace as mr
ws = mr.open(sys.argv[2], config=CUT_UP, create=True)
program(sys.argv[1], package="millrace").run(ws, sys.argv[3]).run()
"""
UNCHANGED = """
import sys
from tests.spark.conftest import _connect
from tests.spark.test_tutorials import CUT_UP, program
import millrace as mr
spark = _connect()
ws = mr.open(sys.argv[2], spark, config=CUT_UP, create=True)
ws.durable(program(sys.argv[1]).run(spark, sys.argv[3])).collect()
"""


def killed(text: str, name: str, mill: Path, folder: Path) -> None:
    """An application runs a program, and is killed before its third stage."""
    kept = ("SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP", "PYSPARK_PYTHON")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SPARK_", "PYSPARK_"))  # Of the session here.
    }
    environment["MILLRACE_FAULT"] = "dataset.driver.before_stage@2"
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", text, name, str(mill), str(folder)]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.classic_only
@pytest.mark.parametrize("name", NAMES)
def test_killed_half_way_it_goes_on(
    name: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    killed(CHANGED, name, tmp_path / "mill", folder)
    with mr.open(tmp_path / "mill", spark, config=CUT_UP) as ws:
        result = program(name, package="millrace").run(ws, str(folder))
        report = result.run()
        assert report.reused > 0, "stages before the kill are reused"
        assert report.ran > 0, "and those behind it were not finished"
        assert result.run().ran == 0
        assert rows_of(result) == rows_of(program(name).run(spark, str(folder)))


@pytest.mark.slow
@pytest.mark.connect_only
@pytest.mark.parametrize("name", NAMES)
def test_unchanged_and_killed_half_way_it_goes_on(
    name: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    killed(UNCHANGED, name, tmp_path / "mill", folder)
    frame = program(name).run(spark, str(folder))
    with mr.open(tmp_path / "mill", spark, config=CUT_UP) as ws:
        report = ws.from_spark(frame).run()
        assert report.reused > 0, "stages before the kill are reused"
        assert report.ran > 0, "and those behind it were not finished"
        assert ws.from_spark(frame).run().ran == VIEW_TASKS.get(name, 0)
        assert rows_of(ws.durable(frame)) == rows_of(frame)
