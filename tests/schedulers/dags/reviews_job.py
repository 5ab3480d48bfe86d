"""The job that schedulers run in tests: each row is a paid call."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import pyarrow as pa

import millrace as mr


def ask(row: dict, context: mr.Context) -> dict:  # type: ignore[type-arg]
    data = json.dumps({"id": row["id"], "key": context.key}).encode()
    request = urllib.request.Request(row["url"], data=data, method="POST")  # noqa: S310 - http
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        return {"id": row["id"], "answer": json.loads(answer.read())["answer"]}


def build(ws: mr.Workspace, folder: str, url: str, rows: int, budget: int | None = None) -> mr.Job:
    Path(folder, "driver.pid").write_text(str(os.getpid()))
    job = ws.job(Path(folder).name)
    given = ws.from_arrow(pa.table({"id": range(rows), "url": [url] * rows}))
    made = job.source("rows", given, partitions=2, version="1").map(
        "ask",
        ask,
        schema="id bigint, answer string",
        expensive=True,
        batch_rows=4,
        workers=2,
        max_calls=budget,
    )
    made.filter("id % 5 > 0").sink_parquet(f"{folder}/out", name="out")
    return job
