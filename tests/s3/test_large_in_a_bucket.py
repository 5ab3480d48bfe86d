"""Large values in a bucket: those that no row refers to go, and only while the job does not run."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.s3.s3_kit import store_at
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.core import hops
from millrace.pipeline.define.job import Job
from millrace.pipeline.large import large_values as large
from millrace.pipeline.large.large_cleanup import LargeRemoved
from millrace.pipeline.run.job_run import run_job
from millrace.pipeline.run.large_objects import remove_large
from millrace.pipeline.run.run_lease import RunLease
from millrace.upkeep.retention_pass import carry_out
from millrace.workspace import Workspace, runtime_of

NEW = mr.Config()
OLD = mr.Config(unfinished_grace="1ms")


def load(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "blob": bytes([row["x"]]) * 5000}


def film_job(ws: Workspace) -> Job:
    job = ws.job("films")
    rows = job.source("rows", journal="in")
    loaded = rows.map("load", load, schema="x bigint, blob binary", large=["blob"], expensive=True)
    loaded.sink_journal("out")
    return job


def test_values_that_no_row_refers_to_are_removed_while_the_job_does_not_run(
    url: str, tmp_path: Path
) -> None:
    with mr.open(url) as ws:
        broker = broker_of(ws.journals)
        ws.journals.create("in", pa.schema([("x", pa.int64())]))
        ws.journals.append("in", pa.table({"x": [1, 2]}))
        run_job(runtime_of(ws), film_job(ws), lambda: ThreadRuntime(broker, tmp_path))
        given = pa.record_batch({"blob": [b"left by a worker that died" * 200]})
        orphan = large.store_large(
            given, ["blob"], workspace=ws.path, folder=large.folder_of("films", "load")
        )
        time.sleep(2.1)  # Times of objects are whole seconds.
        unit = hops.unit_lease("films", "load", broker.get("in").id)
        late = broker.acquire(unit, "a worker that hangs")

        assert remove_large(broker, ws.path, "films", NEW) == LargeRemoved(0, 0)
        broker.renew(late)
        running = RunLease(broker, "films", OLD, threading.Event())
        with pytest.raises(mr.LeaseHeld, match="is being run already"):
            remove_large(broker, ws.path, "films", OLD)
        running.release()
        removed = remove_large(broker, ws.path, "films", OLD)
        again = remove_large(broker, ws.path, "films", OLD)

        assert (removed.files, removed.bytes) == (1, 26 * 200)
        assert again == LargeRemoved(0, 0)
        with pytest.raises(mr.LeaseLost):
            broker.renew(late)
        with pytest.raises(mr.DataLost):
            large.fetch_all([orphan], ws.path)
        out = ws.journals.read("out", 0).rows()
        blobs = large.fetch_all(out.to_batches(), ws.path)[0].column("blob").to_pylist()
        assert sorted(blobs) == [bytes([x]) * 5000 for x in (1, 2)]
        assert broker.leases(hops.run_lease("films")) == ()


def test_retention_removes_values_whose_rows_went_and_lets_a_running_job_be(
    url: str, tmp_path: Path
) -> None:
    with mr.open(url, retention=mr.Retention(jobs="7d"), config=OLD) as ws:
        broker = broker_of(ws.journals)
        ws.journals.create("in", pa.schema([("x", pa.int64())]))
        ws.journals.append("in", pa.table({"x": [1, 2]}))
        job = film_job(ws)
        run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker, tmp_path))
        time.sleep(2.1)  # Times of objects are whole seconds.
        retained = runtime_of(ws).care.retained(broker)
        late = replace(retained, now_ms=lambda: time.time_ns() // 1_000_000 + 8 * 86_400_000)

        running = RunLease(broker, "films", OLD, threading.Event())
        carry_out(late)
        assert values(url) == 2
        running.release()
        carry_out(late)
        assert values(url) == 2, "the rows of the user's journal refer to them"
        ws.journals.delete("out")
        carry_out(retained)

        assert values(url) == 0
        assert broker.leases(hops.run_lease("films")) == ()


def values(url: str) -> int:
    return len(list(store_at(url).calls.list("large/films", deep=True)))
