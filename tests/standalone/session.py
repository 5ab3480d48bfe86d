"""What the applications of these tests have in common: their Spark, and results that are kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr

SCHEMA: Final = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
READ: Final = {"name": "both", "bindings": [{"name": "all", "prefix": "t", "key": ["key"]}]}
JOURNALS: Final = ("t/a", "t/b")
ROWS: Final = 4
"""Of a transaction in each journal."""
SLOTS: Final = 3


def start_session() -> SparkSession:
    """Spark on the cluster that the environment names, once all its hosts are there."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    address = os.environ["SPARK_LOCAL_IP"]
    builder = (
        SparkSession.builder.master(os.environ["MILLRACE_TEST_MASTER"])
        .appName("millrace-standalone")
        .config("spark.driver.bindAddress", address)
        .config("spark.driver.host", address)
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.cores.max", str(SLOTS))
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
        .config("spark.task.maxFailures", "30")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in json.loads(os.environ.get("MILLRACE_TEST_CONF", "{}")).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def write_transactions(mill: Path, numbers: range) -> None:
    """A transaction over both journals for each number."""
    with mr.open(mill) as ws:
        for name in JOURNALS:
            ws.journals.create(name, SCHEMA)
        with ws.journals.producer("writer") as writer:
            for number in numbers:
                rows = pa.table({"key": range(ROWS), "amount": [number] * ROWS}, schema=SCHEMA)
                for name in JOURNALS:
                    writer.append(name, rows)
                writer.commit()


def keep(path: Path, rows: list[list[object]]) -> None:
    """Store rows under a number; the same number must have the same rows for good."""
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


def check_transactions(folder: Path, transactions: int) -> None:
    """All rows that were written came, each once, and no number has half of a transaction."""
    parts = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    every = [
        [name, key, number]
        for name in JOURNALS
        for key in range(ROWS)
        for number in range(transactions)
    ]
    assert sorted(row for rows in parts for row in rows) == sorted(every)
    for rows in parts:
        for number in {row[2] for row in rows}:
            assert sum(row[2] == number for row in rows) == len(JOURNALS) * ROWS, (number, rows)
