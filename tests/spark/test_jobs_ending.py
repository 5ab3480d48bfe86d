"""Functions that end Spark's Python workers, and keys that outlive them."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG, TEXTS, calls, caption, happened, ids

import millrace as mr
from millrace.errors import LeaseHeld, StepFailed
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.define.job import Job

pytestmark = pytest.mark.spark
ROWS = 40
GUILTY = 7
RETRIES = 2
DEADLY = CONFIG.with_options(job_failures_max=RETRIES)
"""Workers end more often in a row than Spark may fail: this is not counted against it."""


def ending(ws: mr.Workspace, folder: Path, way: str, **options: Any) -> Job:  # noqa: ANN401
    """A job whose function ends its process at one row."""
    note = caption(folder / "log")

    def call(row: dict) -> dict:  # type: ignore[type-arg]
        made = note(row)
        if row["id"] == 7:
            os._exit(3) if way == "_exit" else ctypes.string_at(0)
        return made

    job = ws.job("ending")
    rows = ws.spark.range(ROWS).selectExpr("id", "concat('u', id) AS url")
    job.source("videos", rows, partitions=2).map(
        "call", call, schema=TEXTS, version="1", **options
    ).sink_parquet(folder / "out")
    return job


@pytest.mark.slow
@pytest.mark.parametrize("way", ["_exit", "segmentation fault"])
def test_a_function_that_ends_its_worker_fails_that_row_and_costs_no_other(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    with mr.open(tmp_path / "mill", spark, config=DEADLY) as ws:
        options = {"retries": RETRIES, "on_error": "dead_letter", "expensive": True}
        report = ending(ws, tmp_path, way, **options).run()

        assert report.state == "finished"
        wanted = {row: 1 + RETRIES * (row == GUILTY) for row in range(ROWS)}
        assert calls(tmp_path / "log") == wanted
        assert ids(tmp_path / "out") == [row for row in range(ROWS) if row != GUILTY]
        step = report.step("call")
        assert (step.calls, step.errors) == (ROWS + RETRIES, 1 + RETRIES)
        assert (step.dead_letters, step.in_doubt) == (1, 1 + RETRIES)
        attempts = [e.detail["attempts"] for e in happened(ws, "ending", JobEventKind.DIED)]
        assert attempts == list(range(1, RETRIES + 2))


def test_a_cheap_step_whose_function_ends_its_worker_fails_with_the_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as ws:
        job = ending(ws, tmp_path, "_exit", retries=1, batch_rows=4)

        with pytest.raises(StepFailed, match="ended in the call for this row, 2 times") as failed:
            job.run()

        assert "on_error='dead_letter' or 'skip'" in str(failed.value)
        made = calls(tmp_path / "log")
        assert made[GUILTY] == 2
        assert max(made.values()) == 2, "what was not published is done once more, and no oftener"


def test_a_row_has_its_key_for_good_and_no_other_workspace_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "keys"

    def keys(folder: str, is_broken: bool) -> dict[int, set[str]]:  # noqa: FBT001
        path = os.fspath(log)
        log.write_text("")

        def call(row: dict, context: mr.Context) -> dict:  # type: ignore[type-arg]
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{row['id']} {context.key}\n")
            if is_broken and row["id"] == 3:
                raise ValueError("not yet")
            return {"id": row["id"], "text": ""}

        with mr.open(tmp_path / folder, spark, config=CONFIG) as ws:
            job = ws.job("keys")
            rows = ws.spark.range(4).selectExpr("id", "'u' AS url")
            step = job.source("videos", rows, partitions=1).map(
                "call", call, schema=TEXTS, expensive=True, retries=1, batch_rows=1, version="1"
            )
            step.sink_journal("made")
            if is_broken:
                with pytest.raises(StepFailed):
                    job.run()
            else:
                job.run()
        found: dict[int, set[str]] = {}
        for line in log.read_text().splitlines():
            row, key = line.split()
            found.setdefault(int(row), set()).add(key)
        return found

    failed = keys("one", is_broken=True)
    resumed = keys("one", is_broken=False)
    other = keys("other", is_broken=False)
    shutil.rmtree(tmp_path / "one")
    again = keys("one", is_broken=False)

    assert resumed == {3: failed[3]}
    known = failed | resumed
    assert [len(some) for some in known.values()] == [1, 1, 1, 1], "retries have the same key"
    every = [key for some in (known, other, again) for found in some.values() for key in found]
    assert len(every) == len(set(every)) == 12


def test_a_second_run_of_a_running_job_is_refused_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    is_open = tmp_path / "open"
    called, door = os.fspath(tmp_path / "called"), os.fspath(is_open)

    def wait(row: dict) -> dict:  # type: ignore[type-arg]
        with open(called, "w"):
            pass
        while not os.path.exists(door):
            threading.Event().wait(0.01)
        return {"id": row["id"], "text": ""}

    with mr.open(tmp_path / "mill", spark, config=CONFIG) as ws:
        job = ws.job("waits")
        rows = ws.spark.range(1).selectExpr("id")
        job.source("rows", rows, partitions=1).map(
            "call", wait, schema=TEXTS, expensive=True, version="1"
        ).sink_journal("made")
        states: list[str] = []
        first = threading.Thread(target=lambda: states.append(job.run().state))
        first.start()
        while not os.path.exists(called):
            threading.Event().wait(0.01)

        with pytest.raises(LeaseHeld) as held:
            job.run()

        is_open.touch()
        first.join(120)
    assert states == ["finished"]
    assert f"(process {os.getpid()}) since 20" in str(held.value)
    assert "to fix: wait for its end, or stop it there" in str(held.value)
