"""Tasks and workers of Spark send spans below their driver's, and calls below their workers'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.metrics.collector_kit import SentSpan, collector

PROGRAM = """
import sys
import pyarrow as pa
import millrace as mr

def ask(row, context):
    return {"id": row["id"]}

mr.send_traces(sys.argv[3])
ws = mr.open(sys.argv[1], config=mr.Config(one_task_bytes_max=1, read_together_bytes_max=1))
assert ws.read_parquet(sys.argv[2]).group_by("id").agg(n="count(*)").to_arrow().num_rows == 4
job = ws.job("asks")
rows = job.source("ids", ws.from_arrow(pa.table({"id": [1, 2, 3]})))
rows.map("ask", ask, schema="id bigint", expensive=True).sink_parquet(sys.argv[1] + "/out")
assert job.run().step("ask").calls == 3
ws.stop()
"""


@pytest.mark.slow
@pytest.mark.classic_only
def test_a_query_and_a_job_are_a_trace_each_down_to_tasks_owner_and_calls(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": [1, 2, 3, 4]}), tmp_path / "orders" / f"{number}.parquet")

    with collector() as there:
        arguments = [str(tmp_path / "mill"), str(tmp_path / "orders"), there.url]
        subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True)

    spans = there.spans()
    by_id = {span.id: span for span in spans}

    def path(span: SentSpan) -> list[str]:
        above = by_id.get(span.parent)
        return [span.name] if above is None else [*path(above), span.name]

    paths = [path(span) for span in spans]
    assert ["query", "stage", "task"] in paths
    assert paths.count(["job", "worker", "step", "call"]) == 3
    assert any(each[:3] == ["job", "worker", "step"] and "owner" in each[-1] for each in paths)
    (first,) = [s for s in spans if s.name == "query" and s.about["millrace.run"] == 1]
    tasks = [s for s in spans if s.name == "task" and s.trace == first.trace]
    assert {(s.about["millrace.stage"], s.about["millrace.task"]) for s in tasks} >= {
        (0, 0),
        (0, 1),
    }
    assert first.process not in {s.process for s in tasks}
