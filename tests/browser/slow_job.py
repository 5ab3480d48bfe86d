"""A job whose calls take a while, for a test that looks at it and kills it.

python -m tests.browser.slow_job FOLDER
"""

from __future__ import annotations

import sys
import time
from typing import Any, TypedDict

import pyarrow as pa

import millrace as mr

ROWS = 4_000


class Slept(TypedDict):
    id: int


def sleep(row: dict[str, Any]) -> Slept:
    time.sleep(0.02)
    return {"id": row["id"]}


def main(folder: str) -> None:
    """Run it to its end, if nobody kills it."""
    with mr.open(f"{folder}/mill", config=mr.Config(job_lease="4s", job_run_lease="4s")) as ws:
        rows = ws.from_arrow(pa.table({"id": list(range(ROWS))}))
        job = ws.job("slow")
        made = job.source("ids", rows, version="1").map(
            "sleep", sleep, expensive=True, version="1", batch_rows=10
        )
        made.sink_parquet(f"{folder}/out", name="out")
        job.run()


if __name__ == "__main__":
    main(sys.argv[1])
