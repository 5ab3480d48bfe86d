"""Key hash against Polars `Series.hash()`, in one process and one run.

    .venv/bin/python benchmarks/key_hash.py [--rows N]

Times are the best of several runs; a ratio above 1 means Millrace is faster. What limits strings:
Spark's hash mixes four bytes per step, each step waiting for the one before, and then every byte
behind the last full word in a step of its own. 64 strings are hashed side by side, yet a string of
10 bytes still takes 7 steps in every lane; Polars is free to choose a hash with fewer steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from millrace.keys import compiled_kernels, hash32, partition_ids

RUNS = 7
SMALL_ROWS = 100_000


def best(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(RUNS):
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times)


def texts(rng: np.random.Generator, rows: int, shortest: int, longest: int) -> pa.Array:
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(shortest, longest + 1, rows), out=offsets[1:])
    data = rng.integers(97, 123, offsets[-1], np.uint8)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def compare(name: str, array: pa.Array) -> None:
    table = pa.table({"k": array})
    series = pl.Series(pl.from_arrow(array))
    peer = best(series.hash)
    for kernels, switch in (("native", "1"), ("fallback", "0")):
        os.environ["MILLRACE_NATIVE"] = switch
        if kernels == "native" and not compiled_kernels.available():
            continue
        ours = best(lambda: hash32(table, "k"))
        report(f"{name} {kernels}", len(array), ours, peer)


def report(case: str, rows: int, ours: float, peer: float) -> None:
    print(f"{case:28} {rows / ours / 1e6:9.0f} M/s {rows / peer / 1e6:9.0f} M/s {peer / ours:7.2f}")
    line = {"millrace_s": ours, "peer_s": peer, "ratio": peer / ours}
    print(json.dumps({"benchmark": "key_hash", "case": case, **line}))


def partition_small(rng: np.random.Generator) -> None:
    table = pa.table({"k": rng.integers(-(2**63), 2**63 - 1, SMALL_ROWS)})
    for kernels, switch in (("native", "1"), ("fallback", "0")):
        os.environ["MILLRACE_NATIVE"] = switch
        cpu = best(lambda: partition_ids(table, "k", 200), time.process_time)
        case = f"partition {SMALL_ROWS} int64 {kernels}"
        print(f"{case:36} {cpu * 1e3:.3f} ms of CPU (limit: 1 ms)")
        print(json.dumps({"benchmark": "key_hash", "case": case, "millrace_cpu_s": cpu}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    rng = np.random.default_rng(1)
    print(f"{'case':28} {'Millrace':>13} {'Polars':>13} {'ratio':>7}")
    compare("int64", pa.array(rng.integers(-(2**63), 2**63 - 1, rows)))
    compare("int64 10% null", pa.array(rng.integers(0, 100, rows), mask=rng.random(rows) < 0.1))
    compare("string 8-12", texts(rng, rows // 4, 8, 12))
    compare("string 30-50", texts(rng, rows // 4, 30, 50))
    compare("string 0-100", texts(rng, rows // 4, 0, 100))
    partition_small(rng)
    print(__doc__.split("\n\n")[-1] if __doc__ else "")


if __name__ == "__main__":
    main()
