"""The job of `millrace demo`: a join, a paid call for each row, files. Run as a process of its own.

python -m millrace.cli.demo_job FOLDER URL
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, TypedDict

import click

from millrace.pipeline.define.context import Context
from millrace.pipeline.define.job import Job
from millrace.testing.paid_api import ask
from millrace.workspace import Workspace
from millrace.workspace import open as open_workspace


class PaidReview(TypedDict):
    """The answer of the paid API for an order."""

    order_id: int
    nation: str
    score: float


class Reviewer:
    """Made once in each worker, as a model would be loaded."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, row: dict[str, Any], context: Context) -> PaidReview:
        """Pay for one order. The key lets the API see that it was asked before."""
        order = {"id": row["order_id"], "text": row["nation"]}
        answer = ask(self.url, order, key=context.key)
        return {"order_id": row["order_id"], "nation": row["nation"], "score": answer["score"]}


def build(ws: Workspace, folder: str, url: str) -> Job:
    """Orders joined with customers, each reviewed by the paid API, the good ones written out."""
    orders = ws.read_parquet(os.path.join(folder, "orders"))
    customers = ws.read_parquet(os.path.join(folder, "customers"))
    joined = orders.join(customers, on="cust_id").select("order_id", "nation", "amount")

    job = ws.job("reviews")
    reviews = job.source("orders", joined, version="demo").map(
        "review",
        partial(Reviewer, url),
        expensive=True,
        batch_rows=8,
        version="1",
    )
    reviews.filter("score >= 0.25").sink_parquet(os.path.join(folder, "reviews"))
    return job


def main() -> None:
    """Run the job, or go on with it, and keep its report."""
    folder, url = sys.argv[1:]
    with open_workspace(os.path.join(folder, "mill")) as ws:
        report = build(ws, folder, url).run()
    with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
        file.write(report.to_json())
    click.echo(str(report))


if __name__ == "__main__":
    main()
