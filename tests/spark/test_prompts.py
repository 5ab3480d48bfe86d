"""Prompt steps in jobs on Spark: the judge is the invoice of a provider that is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels

pytestmark = pytest.mark.spark
KEY = "sk-never-to-be-written-4711"
WRONG = "sk-wrong-and-secret-too-0815"
PROGRAM = """
import logging, sys
from dataclasses import dataclass

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millrace as mr

folder, url, mode = sys.argv[1:]
logging.basicConfig(filename=folder + "/python.log", level=logging.DEBUG)
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", folder + "/events")
    .config("spark.local.dir", folder + "/local")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)

@dataclass
class Review:
    label: str

config = mr.Config(job_batch_poll="200ms")
with mr.open(folder + "/mill", spark, config=config) as ws:
    job = ws.job("prompts")
    rows = job.source("rows", ws.from_arrow(pa.table({"id": range(20)})))
    llm = mr.llm.openai("gpt-5-mini", base_url=url)
    made = rows.prompt(
        "ask", llm, template="number {id}", output=Review, mode=mode, on_error="fail", retries=0
    )
    with open(folder + "/closure", "wb") as file:
        file.write(cloudpickle.dumps(made._node.calling))
    made.sink_parquet(folder + "/out")
    try:
        print(job.run().state)
    except mr.StepFailed as error:
        print(f"refused {error}")
spark.stop()
"""


def run(folder: Path, url: str, key: str, mode: str) -> str:
    """What a job prints that runs with a key in its environment; its logs are in files."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), url, mode],
        env={**os.environ, "OPENAI_API_KEY": key, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        timeout=300,
        check=False,
    )
    with (folder / "said.log").open("ab") as file:
        file.write(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["calls", "batch"])
@pytest.mark.classic_only
def test_a_key_is_written_nowhere(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "all"
    (folder / "events").mkdir(parents=True)
    with PaidModels(tmp_path / "invoice.log", key=KEY) as service:
        refused = run(folder, service.openai_url, WRONG, mode)
        finished = run(folder, service.openai_url, KEY, mode)

    assert "refused" in refused
    assert "set OPENAI_API_KEY" in refused
    assert "finished" in finished
    assert len(charges(tmp_path / "invoice.log")) == 20
    files = [path for path in folder.rglob("*") if path.is_file()]
    kinds = {path.relative_to(folder).parts[0] for path in files}
    assert kinds >= {"mill", "events", "out", "closure", "python.log", "said.log"}
    for path in files:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert WRONG.encode() not in content, path
