"""What workers spent their time on is counted for the hop that they worked on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.pipeline.core.hops import Hop
from millrace.spark.job_workers import spent_on


def same(row: dict) -> dict:  # type: ignore[type-arg]
    return row


def job_hops(folder: str) -> tuple[Hop, ...]:
    ws = mr.open(folder, broker="memory")
    ws.journals.create("given", pa.schema([("id", pa.int64())]))
    job = ws.job("j")
    rows = job.source("rows", journal="given").map("first", same, schema="id bigint")
    paid = rows.map("paid", same, schema="id bigint", expensive=True)
    kept = paid.map("second", same, schema="id bigint").filter("id > 0")
    kept.sink_parquet(f"{folder}/out")
    hops = job.hops
    ws.close()
    return hops


def outcome(taken: dict[str, float], inside: dict[str, float]) -> dict[str, Any]:
    return {"seconds_per_hop": taken, "seconds_in_function": inside}


def test_functions_that_are_fused_count_for_the_hop_they_run_in(tmp_path: Path) -> None:
    hops = job_hops(str(tmp_path))
    assert [hop.name for hop in hops] == ["first", "paid", "sink_parquet"]
    one = outcome({"paid": 4.0, "sink_parquet": 2.0}, {"paid": 3.0, "second": 1.0})
    other = outcome({"first": 8.0, "sink_parquet": 6.0}, {"first": 2.0, "second": 0.5})
    assert spent_on(hops, [one, other]) == {
        "first": (8.0, 2.0),
        "paid": (4.0, 3.0),
        "sink_parquet": (8.0, 1.5),
    }
    assert spent_on(hops, []) == {}
