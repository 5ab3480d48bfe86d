"""A job with an expensive step on the cluster; what it reports is in a file when it ends."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.standalone.session import start_session

import millrace as mr

CONFIG = mr.Config(job_run_lease=5, job_lease=5, job_watch_ms=50)


def main(mill: str, out: str, url: str, rows: str, batch: str, sink: str) -> None:
    """Ask the paid API for each row, and keep most of its answers."""

    def ask(row: dict[str, Any], context: mr.Context) -> dict[str, Any]:
        data = json.dumps({"id": row["id"], "key": context.key}).encode()
        request = urllib.request.Request(url, data=data, method="POST")  # noqa: S310 - the test's
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return {"id": row["id"], "answer": json.loads(answer.read())["answer"]}

    spark = start_session()
    with mr.open(mill, spark, config=CONFIG) as ws:
        job = ws.job("paid")
        made = job.source("rows", spark.range(int(rows)), partitions=3).map(
            "ask",
            ask,
            schema="id bigint, answer string",
            expensive=True,
            batch_rows=int(batch),
            version="1",
        )
        some = made.filter("id % 5 > 0")
        if sink == "journal":
            some.sink_journal("answers", name="out")
        else:
            some.sink_parquet(sink, name="out")
        report = job.run()
    fresh = Path(out, "report.draft")
    fresh.write_text(report.to_json())
    fresh.rename(Path(out, "report.json"))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
