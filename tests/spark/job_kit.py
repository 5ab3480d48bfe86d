"""Functions for jobs that note each call in a file, and what came out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.report.run_history import RunHistory
from millrace.workspace import runtime_of

Row = dict[str, Any]
# Nobody dies: a lease that ran out on a busy machine would only put calls in doubt.
CONFIG = mr.Config(job_run_lease=60, job_lease=60).with_options(job_watch_ms=50, job_sample_ms=100)
# Somebody does, and is waited for.
DEADLY = CONFIG.with_options(job_run_lease=4, job_lease=4)


def caption(log: Path) -> Callable[[Row], Row]:
    """Makes a text of each row, and notes the call; made where workers need not import it."""
    path = os.fspath(log)

    def captioned(row: dict) -> dict:  # type: ignore[type-arg]
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{row['id']}\n")
        return {"id": row["id"], "text": f"text of {row['url']}"}

    return captioned


TEXTS = "id bigint, text string"


def calls(log: Path) -> Counter[int]:
    """How often each row was called for, by what the function itself wrote down."""
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def written(folder: Path) -> pa.Table:
    """All rows of a sink's files, by id."""
    files = sorted(folder.glob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    return pa.concat_tables(tables).sort_by("id") if tables else pa.table({"id": []})


def ids(folder: Path) -> list[int]:
    found: list[int] = written(folder)["id"].to_pylist()
    return found


def happened(ws: mr.Workspace, job: str, what: JobEventKind) -> list[JobEvent]:
    return [
        event
        for event in RunHistory.open(runtime_of(ws).joined_broker(), job).events
        if event.happened is what
    ]


def rows_in(ws: mr.Workspace, job: str, step: str) -> dict[str, int]:
    """How many rows each journal of a step or source holds."""
    broker = ws.journals
    found = broker.list(hops.output_prefix(job, step))
    return {info.name.rpartition("/")[2]: broker.backlog("nobody", info.name) for info in found}
