"""How many requests a whole query of several stages takes, from its input to its last row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.s3.s3_kit import Proxy, Server, credentials
from tests.unit.tables.iceberg_kit import runs_here
from tests.unit.tables.test_iceberg_source import ran

from millrace.storage.file_systems import remote_path
from millrace.storage.storage_options import storage_options

ORDERS, CUSTOMERS, ROWS = 12, 4, 50
NAMES = 40
OPTIONS = {"one_task_bytes_max": 1, "partition_bytes_target": 512, "broadcast_bytes_max": 1}


def put_inputs(url: str) -> tuple[str, str]:
    """Files of orders and of customers beside the workspace."""
    place, _, how = url.partition("?")
    orders, customers = f"{place}-in/orders", f"{place}-in/customers"
    for number in range(ORDERS):
        base = number * ROWS
        names = [(base + n) % NAMES for n in range(ROWS)]
        put(f"{orders}/{number}.parquet?{how}", pa.table({"c": names, "v": range(ROWS)}))
    for number in range(CUSTOMERS):
        some = range(number, NAMES, CUSTOMERS)
        regions = [n % 3 for n in some]
        put(f"{customers}/{number}.parquet?{how}", pa.table({"c": some, "region": regions}))
    return f"{orders}?{how}", f"{customers}?{how}"


def put(url: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    remote_path(url, storage_options(None)).put(sink.getvalue())


def test_a_join_and_a_group_by_take_few_requests_and_a_second_run_fewer(
    server: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path / "own"))
    with Proxy(server.port).running() as proxy:
        for name, value in credentials(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        orders, customers = put_inputs(url)
        with runs_here(url, **OPTIONS) as (workspace, ws):  # type: ignore[arg-type]
            proxy.seen.clear()
            joined = ws.read_parquet(orders).join(ws.read_parquet(customers), on="c")
            query = joined.group_by("region").agg(n="count(*)", total="sum(v)")
            rows, report = ran(workspace, query)
            first = proxy.seen.total()
            again, second_report = ran(workspace, query)
            second = proxy.seen.total() - first

    assert sum(row["n"] for row in rows) == ORDERS * ROWS
    assert again == rows
    assert report.ran == 18
    assert second_report.ran == 0
    # 695 and 185 when this was written: half of the first are the ranges of 32 partitions in 16 map
    # outputs, and most of the second are looks at the input and at what each task has done.
    assert first <= 740
    assert second <= 200
