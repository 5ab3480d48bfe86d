"""Reads a shuffle with json and pyarrow, Polars or DuckDB, as docs/format.md says."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr


def streams(workspace: Path, run: int, partition: int) -> Iterator[bytes]:
    """The Arrow IPC stream that each map task wrote for a partition, in order."""
    manifest = json.loads((workspace / f"shuffle/{run}/0/manifest.json").read_bytes())
    for chosen in manifest["chosen"]:
        folder = workspace / "shuffle" / chosen["attempt"]
        part = json.loads((folder / "index.json").read_bytes())["partitions"][partition]
        if part["file"] is not None:  # Else this map task had no row for the partition.
            data = (folder / part["file"]).read_bytes()
            yield data[part["offset"] : part["offset"] + part["bytes"]]


with tempfile.TemporaryDirectory() as name:
    mill, rows = Path(name) / "mill", range(1000)
    pq.write_table(pa.table({"k": [n % 50 for n in rows], "v": rows}), f"{name}/in.parquet")
    with mr.open(mill) as ws:
        counts = (4, 300)  # 4 partitions: a file each. 300: ranges of one data.ipc.
        made = [ws.shuffle(f"{name}/in.parquet", keys="k", partitions=n) for n in counts]
    for shuffle in made:
        parts = [s for p in range(shuffle.partitions) for s in streams(mill, shuffle.query_id, p)]
        arrow = pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
        polars = pl.concat([pl.read_ipc_stream(part) for part in parts])
        total = duckdb.execute("SELECT count(*), sum(v) FROM arrow").fetchall()
        assert total == [(1000, sum(rows))] == [(len(polars), polars["v"].sum())]
        print(f"{shuffle}: {len(arrow)} rows with pyarrow, Polars and DuckDB")
