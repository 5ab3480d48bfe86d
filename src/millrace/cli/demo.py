"""`millrace demo`: Parquet files become a durable shuffle, which is read with no Spark running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import UserError
from millrace.text import human_bytes
from millrace.workspace import Workspace
from millrace.workspace import open as open_workspace

MARKER: Final = "made-by-millrace-demo"
FILES: Final = 4
PARTITIONS: Final = 8
_READ: Final = """
import sys, pyarrow as pa
paths = sys.argv[1:]
rows = sum(pa.ipc.open_stream(pa.memory_map(path)).read_all().num_rows for path in paths)
print(f"   another process, plain pyarrow, no Spark: {rows:,} rows in {len(paths)} files")
assert "pyspark" not in sys.modules
"""


@click.command()
@click.option("--folder", default="demo-workspace", show_default=True, help="Where to put it all.")
@click.option("--rows", default=2_000_000, show_default=True, help="Rows of sample data.")
@click.option("--partitions", default=PARTITIONS, show_default=True, help="Partitions to make.")
def demo(folder: str, rows: int, partitions: int) -> None:
    """Make sample orders, shuffle them by customer on Spark, read them back without Spark."""
    _fresh(folder)
    click.echo(f"1. {rows:,} sample orders in {FILES} Parquet files")
    _make_orders(os.path.join(folder, "orders"), rows)
    with open_workspace(os.path.join(folder, "mill")) as ws:
        click.echo(f"2. Spark tasks write them by customer to {partitions} partitions")
        _shuffle(ws, folder, partitions)
        click.echo("3. the same again: nothing changed, so no task runs")
        _shuffle(ws, folder, partitions)
        click.echo("4. one file changes: its map task runs, the others are reused")
        _write_orders(os.path.join(folder, "orders", "orders-0.parquet"), rows // FILES, seed=99)
        _shuffle(ws, folder, partitions)
        click.echo("5. read partition 3 with no Spark running")
        newest = ws.open_shuffle(ws.runs()[-1].query_id)
        click.echo(f"   millrace: {newest.read(min(3, partitions - 1)).num_rows:,} rows")
        _read_elsewhere(ws, min(3, partitions - 1))
        checked = newest.verify()
        click.echo(f"   verify: {human_bytes(checked.bytes)}, {len(checked.problems)} problems")
    command = sys.argv[0] if os.path.basename(sys.argv[0]) == "millrace" else "millrace"
    click.echo(f"\nlook around:  {command} shuffle ls {folder}/mill")
    click.echo(f"              {command} shuffle show {folder}/mill {newest.query_id}")
    if not checked.ok or newest.rows != rows // FILES * FILES:
        raise UserError(f"the demo found {newest.rows:,} rows and {len(checked.problems)} problems")


def _shuffle(ws: Workspace, folder: str, partitions: int) -> None:
    done = ws.shuffle(os.path.join(folder, "orders"), keys="cust_id", partitions=partitions)
    report = str(done.report).replace("\n", "\n   ")
    click.echo(f"   run {done.query_id}: {done.rows:,} rows, {human_bytes(done.bytes)}; {report}")


def _read_elsewhere(ws: Workspace, partition: int) -> None:
    newest = ws.open_shuffle(ws.runs()[-1].query_id)
    paths = [
        os.path.join(ws.path, "shuffle", str(choice.attempt), f"part-{partition}.ipc")
        for choice in newest.manifest.chosen
    ]
    files = [path for path in paths if os.path.exists(path)]
    subprocess.run([sys.executable, "-c", _READ, *files], check=True)  # noqa: S603 - our own text


def _fresh(folder: str) -> None:
    """Make the folder anew, but only delete one that an earlier demo made."""
    if os.path.exists(folder):
        if not os.path.exists(os.path.join(folder, MARKER)):
            raise UserError(
                f"{folder} exists and was not made by the demo\n  to fix: give another --folder"
            )
        shutil.rmtree(folder)
    os.makedirs(os.path.join(folder, "orders"))
    with open(os.path.join(folder, MARKER), "w", encoding="utf-8"):
        pass


def _make_orders(folder: str, rows: int) -> None:
    for number in range(FILES):
        _write_orders(os.path.join(folder, f"orders-{number}.parquet"), rows // FILES, seed=number)


def _write_orders(path: str, rows: int, *, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = pa.table(
        {
            "order_id": np.arange(rows) + seed * rows,
            "cust_id": random.integers(0, max(1, rows // 10), rows),
            "amount": random.random(rows).round(2),
        }
    )
    pq.write_table(table, path)
