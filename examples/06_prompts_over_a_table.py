"""Mails sorted by a model: a table in, structured answers out to a Delta table, with a budget.

The provider is a stand-in that writes an invoice. Point `base_url` at a real one, or leave it out.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable

import millrace as mr
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels

FOLDER = Path("example-06")


@dataclass
class Review:
    """What the model is asked for."""

    label: Literal["praise", "complaint", "question"]
    urgency: float


def run(ws: mr.Workspace, url: str, dollars: float) -> None:
    """Sort mails until all are done or the budget is spent; a later run goes on."""
    mails = pa.table({"id": range(60), "body": [f"Mail {n % 50}" for n in range(60)]})
    job = ws.job("mails")
    reviews = job.source("mails", ws.from_arrow(mails)).prompt(
        "review",
        mr.llm.openai("gpt-5-mini", base_url=url),
        template="Which kind of mail is this?\n{body}",
        output=Review,
        cache="workspace",  # Ten mails are copies of others: what was answered is not asked again.
        budget=mr.Budget(usd=dollars),
    )
    reviews.sink_delta(FOLDER / "reviews")
    report = job.run()
    print(f"{dollars} dollars: {report.state}, {report.step('review').rows_in} mails done")


shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir()
with PaidModels(FOLDER / "invoice.log") as service, mr.open(FOLDER / "mill") as ws:
    run(ws, service.openai_url, dollars=0.0005)
    run(ws, service.openai_url, dollars=1.0)
table = DeltaTable(FOLDER / "reviews").to_pyarrow_table()
paid = charges(FOLDER / "invoice.log")
print(f"{table.num_rows} reviews in the table, columns {', '.join(table.column_names)}")
print(f"invoice: {len(paid)} answers, {sum(charge.usd for charge in paid):.6f} dollars")
