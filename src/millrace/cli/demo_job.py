"""The job of `millrace demo`: a join, a question to a model for each row, files. Its own process.

python -m millrace.cli.demo_job FOLDER URL
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final, Literal

import click

from millrace.llm.models import openai
from millrace.pipeline.define.job import Job
from millrace.workspace import Workspace
from millrace.workspace import open as open_workspace

MODEL: Final = "gpt-5-mini"
TEMPLATE: Final = "Order {order_id} of a customer from {nation}, {amount} dollars. Is it fraud?"
SCORE_MIN: Final = 0.25


@dataclass
class OrderReview:
    """What the model is asked for about an order."""

    verdict: Literal["fine", "odd", "fraud"]
    score: float


def build(ws: Workspace, folder: str, url: str) -> Job:
    """Orders joined with customers, each judged by the model, those with a high score written."""
    orders = ws.read_parquet(os.path.join(folder, "orders"))
    customers = ws.read_parquet(os.path.join(folder, "customers"))
    joined = orders.join(customers, on="cust_id").select("order_id", "nation", "amount")

    job = ws.job("reviews")
    reviews = job.source("orders", joined, version="demo").prompt(
        "review",
        openai(MODEL, base_url=url, temperature=0),
        template=TEMPLATE,
        output=OrderReview,
        batch_rows=8,
        concurrency=4,
    )
    reviews.filter(f"score >= {SCORE_MIN}").sink_parquet(os.path.join(folder, "reviews"))
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
