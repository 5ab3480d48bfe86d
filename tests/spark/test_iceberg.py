"""Iceberg tables on Spark: read by tasks, and appended to by the workers of a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG
from tests.unit.tables.iceberg_kit import catalog_in, data_files, delete_rows, properties

import millrace as mr

pytestmark = pytest.mark.spark
ROWS = 60


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as opened:
        yield opened


def test_a_table_is_read_and_a_job_appends_each_row_of_it_once(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    catalog, secret = catalog_in(tmp_path), "nobody-may-see-this"
    given = {**properties(tmp_path), "token": secret}
    table = catalog.create_table("db.orders", pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    for first in (0, ROWS // 2):
        ids = list(range(first, first + ROWS // 2))
        table.append(pa.table({"id": ids, "n": pa.array([i % 7 for i in ids], pa.int32())}))
    delete_rows(table, {data_files(table)[0].file_path: [3]}, "vectors")
    table.refresh()
    wanted = sorted(table.scan().to_arrow().to_pylist(), key=str)

    orders = ws.read_iceberg("db.orders", catalog=given)
    assert sorted((row.asDict() for row in orders.collect()), key=str) == wanted
    assert orders.filter("n = 6").count() == sum(row["n"] == 6 for row in wanted)

    def job() -> mr.Job:
        job = ws.job("copy")
        source = job.source("orders", orders)
        source.map("twice", lambda row: {"id": row["id"] * 2}, schema="id bigint").sink_iceberg(
            "db.copy", catalog=given
        )
        return job

    report = job().run()
    again = job().run()

    copied = catalog.load_table("db.copy")
    assert sorted(copied.scan().to_arrow()["id"].to_pylist()) == [
        row["id"] * 2 for row in sorted(wanted, key=lambda row: row["id"])
    ]
    assert report.state == again.state == "finished"
    commits = len(copied.snapshots())
    assert 1 <= commits <= 3, "files are committed together"
    assert secret not in f"{report} {job().explain()}"
    written = [path for path in (tmp_path / "mill").rglob("*") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in written)
