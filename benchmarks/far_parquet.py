"""Users' Parquet in a far bucket: read ahead, beside Arrow alone and DuckDB alone in the same run.

    .venv/bin/python benchmarks/far_parquet.py [--delay-ms 30] [--groups 24] [--rows 100000]
        [--duckdb PYTHON]

A server answers each request later. `--duckdb` names a Python that has DuckDB with its extension
`httpfs`. Each reader reads all columns, and two of eight; a line has the median of three runs.
"""

from __future__ import annotations

import argparse
import http.server
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.scan import formats
from millrace.scan.input_files import InputFile
from millrace.scan.remote_files import random_access
from millrace.scan.splits import FileSplit
from millrace.storage.storage_options import StorageOptions, storage_options

BATCH_BYTES = 16 << 20
RUNS = 3
URL = "s3://bucket/a.parquet"
FEW = ("c1", "c6")
DUCKDB = """
import sys, time, json, os, duckdb, duckdb_extension_httpfs
url, endpoint, columns, runs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
con = duckdb.connect(config={"allow_unsigned_extensions": "true", "threads": 1})
con.execute("SET enable_external_file_cache = false")
folder = os.path.join(os.path.dirname(duckdb_extension_httpfs.__file__), "extensions")
name = os.path.join(folder, "v" + duckdb.__version__, "httpfs.duckdb_extension")
con.execute(f"LOAD '{name}'")
con.execute(f"CREATE SECRET (TYPE s3, KEY_ID 'mill', SECRET 'any',"
            f" ENDPOINT '{endpoint}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')")
took = []
for _ in range(runs):
    began = time.perf_counter()
    rows = 0
    for batch in con.execute(f"SELECT {columns} FROM read_parquet('{url}')").to_arrow_reader():
        rows += batch.num_rows
    took.append(time.perf_counter() - began)
print(json.dumps([rows, took]))
"""


def make(groups: int, rows: int) -> bytes:
    """A file of eight columns, numbers and texts."""
    dice = np.random.default_rng(1)
    sink = pa.BufferOutputStream()
    schema = pa.schema([(f"c{n}", pa.string() if n % 4 == 3 else pa.int64()) for n in range(8)])
    with pq.ParquetWriter(sink, schema) as writer:
        for _ in range(groups):
            numbers = [dice.integers(0, 1 << 40, rows) for _ in range(8)]
            columns = [
                pa.array(values).cast(pa.string() if n % 4 == 3 else pa.int64())
                for n, values in enumerate(numbers)
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=rows)
    return bytes(sink.getvalue())


def ours(url: str, options: StorageOptions, columns: Sequence[str] | None) -> int:
    """As a task reads it."""
    file = InputFile(path=url, size=0, mtime_ns=0, ctime_ns=0, options=options)
    split = FileSplit(file=file, row_groups=None, bytes=0)
    read = formats.read("parquet", split, pa.schema([]), {}, BATCH_BYTES, columns)
    return sum(batch.num_rows for batch in read)


def arrow(*, pre_buffer: bool) -> Callable[..., int]:
    """Arrow alone, which fetches all row groups at once, or chunk after chunk."""

    def read(url: str, options: StorageOptions, columns: Sequence[str] | None) -> int:
        source = random_access(url, options)
        with pq.ParquetFile(source, pre_buffer=pre_buffer) as file:
            rows = sum(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))
            size = max(1, BATCH_BYTES * rows // sum(_sizes(file)))
            found = file.iter_batches(size, columns=columns, use_threads=False)
            return sum(batch.num_rows for batch in found)

    return read


def _sizes(file: pq.ParquetFile) -> Iterator[int]:
    for number in range(file.num_row_groups):
        yield file.metadata.row_group(number).total_byte_size


def timed(read: Callable[[], int]) -> tuple[int, list[float], float]:
    """Rows, the seconds of each run, and the most memory of Arrow's pool in MB."""
    took: list[float] = []
    pool, most, done = pa.default_memory_pool(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, pool.bytes_allocated())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(RUNS):
        began = time.perf_counter()
        rows = read()
        took.append(time.perf_counter() - began)
    done.set()
    watcher.join()
    return rows, took, most / 1e6


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--groups", type=int, default=24)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--duckdb")
    given = parser.parse_args()
    data = make(given.groups, given.rows)
    with far_bucket(data, given.delay_ms / 1000) as endpoint:
        options = storage_options(
            {
                "aws_access_key_id": "mill",
                "aws_secret_access_key": "any",
                "aws_endpoint_url": f"http://{endpoint}",
                "aws_region": "us-east-1",
            }
        )
        readers: dict[str, Callable[..., int]] = {
            "Millrace": ours,
            "Arrow, all row groups at once": arrow(pre_buffer=True),
            "Arrow, chunk after chunk": arrow(pre_buffer=False),
        }
        print(f"{len(data) / 1e6:.0f} MB, {given.groups} row groups, {given.delay_ms} ms")
        for columns in (None, FEW):
            what = "all columns" if columns is None else "2 of 8 columns"
            for name, read in readers.items():
                rows, took, most = timed(partial(read, URL, options, columns))
                report(name, what, rows, took, most)
            if given.duckdb:
                shown = ", ".join(columns or ("*",))
                script = [given.duckdb, "-c", DUCKDB, URL, endpoint, shown, str(RUNS)]
                ran = subprocess.run(script, capture_output=True, text=True, check=False)
                if ran.returncode:
                    sys.exit(ran.stderr)
                rows, took = json.loads(ran.stdout.splitlines()[-1])
                report("DuckDB with httpfs", what, rows, took, None)


@contextmanager
def far_bucket(data: bytes, delay_s: float) -> Iterator[str]:
    """A bucket with one object, which answers each request later; its address."""

    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            time.sleep(delay_s)
            first, last = 0, len(data) - 1
            wanted = re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if wanted:
                begin, end = wanted.groups()
                first = int(begin) if begin else len(data) - int(end)
                last = min(int(end), last) if begin and end else last
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"one"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Last-Modified", "Thu, 19 Nov 2026 12:00:00 GMT")
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(memoryview(data)[first : last + 1])

        do_GET = do_HEAD = _answer  # noqa: N815 - names of the library

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def report(name: str, what: str, rows: int, took: Sequence[float], most: float | None) -> None:
    """A line of the table."""
    memory = "" if most is None else f", {most:.0f} MB of Arrow's memory"
    print(f"{what}: {name}: {statistics.median(took):.2f} s ({rows:,} rows{memory})", flush=True)


if __name__ == "__main__":
    main()
