"""Puts one of everything into a workspace, as `python full_workspace.py umask folder [mode]`.

All of it runs under this umask: driver, Spark, its tasks, agents.
"""

from __future__ import annotations

import os
import sys

os.umask(int(sys.argv[1], 8))

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import millrace as mr  # noqa: E402
from millrace.config import KIB  # noqa: E402
from millrace.workspace import runtime_of  # noqa: E402

SMALL = mr.Config(
    journal_small_bytes_max=1 * KIB,
    journal_waiting_bytes_max=1 * KIB,
    task_memory_bytes_max=64 * KIB,
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    agent_lease_ms=20_000,
)


def main(folder: str, mode: str | None) -> None:
    rows = pa.table({"id": range(20_000), "k": [n % 7 for n in range(20_000)]})
    os.makedirs(f"{folder}/in")
    for number in range(3):
        pq.write_table(rows, f"{folder}/in/{number}.parquet")
    os.environ["MILLRACE_FOLDER"] = f"{folder}/host"
    with mr.open(f"{folder}/mill", config=SMALL, mode=mode) as ws:
        ws.shuffle(f"{folder}/in/*.parquet", keys="k", partitions=4).read(1)
        ws.shuffle(f"{folder}/in/*.parquet", keys="k", partitions=100).read(1)
        ws.read_parquet(f"{folder}/in").group_by("k").agg(n="count(*)").to_arrow()
        ws.from_arrow(rows).group_by("k").agg(n="count(*)").to_arrow()
        ws.read_parquet(f"{folder}/in").sort("id").write_parquet(f"{folder}/result")
        ws.journals.create("t/orders", rows.schema)
        for _ in range(5):
            ws.journals.append("t/orders", rows)
        ws.journals.append("t/orders", rows.slice(0, 1))
        file = runtime_of(ws).joined_broker().store_file(rows.schema, rows.to_batches())
        runtime_of(ws).joined_broker().adopt({"t/orders": [file]})
        job(ws, folder)
        read(ws)
        ws.journals.append("t/orders", rows.slice(0, 1))
        look(folder)


def job(ws: mr.Workspace, folder: str) -> None:
    def cut(row: dict) -> dict:  # type: ignore[type-arg]
        return {"id": row["id"], "image": b"x" * 2000}

    made = ws.job("made")
    source = made.source("videos", ws.spark.range(50), partitions=2)
    frames = source.map(
        "frame", cut, schema="id bigint, image binary", large="image", expensive=True, version="1"
    )
    frames.sink_parquet(f"{folder}/out")
    made.run()


def read(ws: mr.Workspace) -> None:
    read = mr.CoordinatedRead("all", [mr.Binding(name="all", prefix="t", key="k")])
    with ws.reads(read, members=2) as session:
        checkpoint = session.next_checkpoint(timeout=60)
        assert checkpoint is not None
        for member in range(2):
            session.read(member, checkpoint)
        look(os.path.dirname(ws.path))


def look(folder: str) -> None:
    """Say what is there, and how open it is."""
    for where in ("mill", "host", "out", "result"):
        for path, folders, files in os.walk(f"{folder}/{where}"):
            for name in [".", *folders, *files]:
                full = os.path.normpath(os.path.join(path, name))
                kind = "folder" if os.path.isdir(full) else "file"
                try:
                    bits = os.lstat(full).st_mode & 0o7777
                except FileNotFoundError:
                    continue
                print(kind, f"{bits:04o}", os.path.relpath(full, folder), sep="\t")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
