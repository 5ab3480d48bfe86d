"""What a small append costs its reader: appends of five rows, read with `read_many`.

    .venv/bin/python benchmarks/reads_small.py [--appends N]

Appends lie in as many journals, or all in one. They are read as they were written, and once more
after the broker merged what it could (`tidy`). Rows are read raw and joined, as slices of a
coordinated read take them, 2,048 journals in a call. N, 2N, 4N and 8N appends, so that growth
shows; the better of two readings.

Microseconds of CPU for each append. A table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.read_request import ReadRequest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.reads import SCHEMA, Measured, show, stamped, workspace

CALL_JOURNALS = 2_048
ROWS = 5


def fill(broker: Broker, appends: int, journals: int) -> list[str]:
    names = [f"small/{number:06d}" for number in range(journals)]
    broker.create_many(names, SCHEMA)
    clock = int(clock_at(time.time_ns() - 3_600_000_000_000))
    with ThreadPoolExecutor(16) as pool:  # Appends of several threads share a commit.
        done = [
            pool.submit(
                broker.append_stamped,
                names[number % journals],
                # Each of a producer of its own, so that their order does not matter.
                stamped(clock, ROWS, 100, 0, number + 1, []),
            )
            for number in range(appends)
        ]
    for appended in done:
        appended.result()
    return names


def read_all(broker: Broker, names: list[str]) -> int:
    """Read everything, as slices do; how many rows there are."""
    rows = 0
    for begin in range(0, len(names), CALL_JOURNALS):
        offsets: dict[str, int] = dict.fromkeys(names[begin : begin + CALL_JOURNALS], 0)
        while offsets:
            many = broker.read_many(
                ReadRequest(offsets=offsets, rows_max=1_000_000, bytes_max=2**28, isolation="raw")
            )
            rows += sum(int(joined.counts.sum()) for joined in many.joined())
            left = zip(many.journals, many.nexts, many.ends, strict=True)
            offsets = {name: next_ for name, next_, end in left if next_ < end}
    return rows


def measure(appends: int, journals: int) -> Measured:
    measured: Measured = {
        "benchmark": "reads_small",
        "case": f"{appends:,} appends in {journals:,} journals",
    }
    with workspace() as ws:
        broker = broker_of(ws.journals)
        names = fill(broker, appends, journals)
        for stage in ("written", "merged"):
            times = []
            for _ in range(2):
                begun = time.process_time()
                rows = read_all(broker, names)
                times.append(time.process_time() - begun)
                assert rows == ROWS * appends, (rows, appends)
            measured[f"{stage}_us"] = round(min(times) / appends * 1e6, 1)
            broker.tidy()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=2_000)
    least = parser.parse_args().appends
    found = []
    for appends in (least, 2 * least, 4 * least, 8 * least):
        found += [measure(appends, appends), measure(appends, 1)]
    show(found)
    for each in found:
        print(json.dumps(each))


if __name__ == "__main__":
    main()
