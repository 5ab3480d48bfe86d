"""Jobs on Spark that commit to PostgreSQL, and datasets of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.postgres.postgres_kit import Postgres
from tests.postgres.sink_kit import asked, new_name

import millrace as mr

pytestmark = pytest.mark.slow
ROWS = 1_000


def priced(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "price": 2 * row["id"]}


def test_a_job_on_spark_commits_to_a_table_and_its_next_run_goes_on_there(
    server: Postgres, tmp_path: Path
) -> None:
    table = new_name()
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", pa.schema([("id", pa.int64())]))
        commits = []
        for begin in (0, ROWS):
            ws.journals.append("orders", pa.table({"id": range(begin, begin + ROWS)}))
            job = ws.job("prices")
            made = job.source("orders", journal="orders").map(
                "price", priced, schema="id bigint, price bigint", version="1"
            )
            made.key_by("id", partitions=3).sink_postgres(server.url, table, "out", keys="id")
            report = job.run()
            assert report.state == "finished"
            assert sum(commit.rows for commit in report.commits) == ROWS
            assert {commit.sink for commit in report.commits} == {"out"}
            assert f"{len(report.commits)} commits, 1,000 rows, the last is" in str(report)
            commits += [commit.version for commit in report.commits]
        found = asked(server, f"SELECT id, price FROM {table} ORDER BY id")
        assert found == [(number, 2 * number) for number in range(2 * ROWS)]
        made_by = asked(server, f"SELECT DISTINCT xmin::text::bigint FROM {table}")
        assert {xmin for (xmin,) in made_by} == set(commits)
        rows = ws.read_postgres(server.url, table, partition_on="id", partitions=4)
        assert rows.agg(n="count(*)", total="sum(price)").to_arrow().to_pylist() == [
            {"n": 2 * ROWS, "total": 2 * sum(range(2 * ROWS))}
        ]
