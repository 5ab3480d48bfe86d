"""`millrace demo`: a job that pays a model is killed half-way, started again, and finishes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Final

import click
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.cli.common import DURATION, example
from millrace.cli.demo_job import SCORE_MIN, TEMPLATE, OrderReview
from millrace.errors import UserError
from millrace.extras import check_extra
from millrace.llm.output_schema import schema_of
from millrace.testing.paid_models.invoice import Charge, charges
from millrace.testing.paid_models.model_answers import Faults, answer_to
from millrace.testing.paid_models.service import PaidModels

MARKER: Final = "made-by-millrace-demo"
FILES: Final = 4
NATIONS: Final = ("CHILE", "FIJI", "GHANA", "JAPAN", "NEPAL", "PERU", "SPAIN", "TONGA")
_POLL_S: Final = 0.02
_WAIT_S: Final = 300
_USD_PART_MAX: Final = 0.001
"""By how much the dollars of the job and of the invoice may differ."""
_SETTLE_S: Final = 0.3


@example("millrace demo --orders 200")
@click.command()
@click.option("--folder", default="demo-workspace", show_default=True, help="Where to put it all.")
@click.option("--orders", default=800, show_default=True, help="Orders, each a paid answer.")
@click.option(
    "--call-time",
    type=DURATION,
    default="20ms",
    show_default=True,
    help="How long an answer takes.",
)
def demo(folder: str, orders: int, call_time: float) -> None:
    """Join orders with customers, ask a model about each order, get killed half-way, and go on.

    Needs the extras `spark` (or `connect`) and `llm`.

    The model is a small service on loopback that speaks OpenAI's format and writes an invoice. The
    first run of the job is killed with SIGKILL, Spark and all. The second one goes on where it
    stopped.
    """
    for extra in ("spark", "llm"):
        check_extra(extra, "`millrace demo`")
    _fresh(folder)
    click.echo(f"1. {orders:,} orders in {FILES} Parquet files, and their customers")
    scores = _make_data(folder, orders)
    log = os.path.join(folder, "invoice.log")
    with PaidModels(log, delay_s=call_time) as service:
        click.echo(f"2. a model answers at {service.openai_url} and writes an invoice")
        click.echo("3. the job: orders joined with customers, each judged by the model")
        _run_and_kill(folder, service.openai_url, log, at=orders // 2)
        before = _settled(log, call_time)
        click.echo(f"   killed with SIGKILL, Spark and all, after {before:,} answers")
        click.echo("4. the same job again, in a new process")
        report = _run(folder, service.openai_url)
    _tell(folder, scores, charges(log), before, report)


def _run_and_kill(folder: str, url: str, log: str, *, at: int) -> None:
    """Run the job until so many answers were paid for; then kill it and all it started."""
    with _started(folder, url, "first") as process:
        deadline = time.monotonic() + _WAIT_S
        while len(charges(log)) < at:
            if process.poll() is not None or time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                raise UserError(
                    f"the first run did not get to its {at}th answer\n"
                    f"  found: {len(charges(log)):,} answers\n  to fix: look at {folder}/first.log"
                )
            time.sleep(_POLL_S)
        os.killpg(process.pid, signal.SIGKILL)


def _settled(log: str, call_time: float) -> int:
    """How many answers the invoice has once all that were on their way to it have arrived."""
    count = -1
    while count != len(charges(log)):
        count = len(charges(log))
        time.sleep(_SETTLE_S + call_time)
    return count


def _run(folder: str, url: str) -> dict[str, Any]:
    """Run the job to its end and return its report."""
    with _started(folder, url, "second") as process:
        if process.wait(_WAIT_S):
            raise UserError(
                f"the second run failed\n  found: exit code {process.returncode}\n"
                f"  to fix: look at {folder}/second.log"
            )
    with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
        report: dict[str, Any] = json.load(file)
    return report


def _started(folder: str, url: str, run: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millrace.cli.demo_job", folder, url]
    with open(os.path.join(folder, f"{run}.log"), "wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _tell(
    folder: str,
    scores: dict[int, float],
    paid: list[Charge],
    before: int,
    report: dict[str, Any],
) -> None:
    """Print the numbers of both runs, and fail unless they add up."""
    review = next(step for step in report["steps"] if step["name"] == "review")
    written = ds.dataset(os.path.join(folder, "reviews")).to_table()
    orders, asked = len(scores), {charge.key: charge for charge in paid}
    twice, once = len(paid) - len(asked), sum(charge.usd for charge in asked.values())
    lost = sum(charge.usd for charge in paid) - once
    after, reused = len(paid) - before, review["reused"]
    returned = orders - reused - after
    click.echo(f"   rows in: {review['rows_in']:,}, rows out: {written.num_rows:,}")
    click.echo("   what the invoice of the model says:")
    click.echo(f"     {before:>7,} answers before the kill   {_usd(paid[:before])}")
    click.echo(f"   + {after:>7,} answers after it          {_usd(paid[before:])}")
    click.echo(f"   = {len(paid):>7,} answers                   {_usd(paid)}")
    click.echo(f"   = {orders:>7,} orders + {twice:,} asked about twice")
    click.echo("   what the job recorded:")
    click.echo(f"     {reused:>7,} answers that the first run had published, reused")
    click.echo(f"   + {returned:>7,} answers that had returned before the kill, kept")
    click.echo(f"   + {after:>7,} orders asked about by the second run")
    click.echo(f"   = {orders:>7,} orders; {review['in_doubt']:,} of them in doubt after the kill:")
    click.echo(
        "     they had been asked about and no answer was recorded, so they were asked again"
    )
    click.echo(
        f"   in dollars: ${review['usd']:.6f} recorded + ${lost:.6f} for answers that were lost"
    )
    click.echo(f"             = {_usd(paid)}, the invoice")
    click.echo(f"   see it in a browser: millrace ui {os.path.join(folder, 'mill')}")
    good = sorted(order for order, score in scores.items() if score >= SCORE_MIN)
    if (
        sorted(written["order_id"].to_pylist()) != good
        or len(asked) != orders
        or returned < 0
        or twice > review["in_doubt"]
        or abs(review["usd"] - once) > _USD_PART_MAX * once
    ):
        raise UserError(
            f"the numbers do not add up\n  found: {len(asked):,} orders were asked about, "
            f"{written.num_rows:,} were written, of {len(good):,} good ones; {after:,} answers "
            f"after the kill\n  to fix: look at {folder}, and report it"
        )
    click.echo("\nnothing lost, nothing doubled, nothing paid twice but what was in doubt")


def _usd(paid: list[Charge]) -> str:
    return f"${sum(charge.usd for charge in paid):.6f}"


def _fresh(folder: str) -> None:
    """Make the folder anew, but only delete one that an earlier demo made."""
    if os.path.exists(folder):
        if not os.path.exists(os.path.join(folder, MARKER)):
            raise UserError(
                f"{folder} exists and was not made by the demo\n  to fix: give another --folder"
            )
        shutil.rmtree(folder)
    os.makedirs(os.path.join(folder, "orders"))
    os.makedirs(os.path.join(folder, "customers"))
    with open(os.path.join(folder, MARKER), "w", encoding="utf-8"):
        pass


def _make_data(folder: str, orders: int) -> dict[int, float]:
    """Write orders and customers; the score that the model gives each order."""
    random = np.random.default_rng(7)
    customers = max(1, orders // 10)
    nations = random.choice(NATIONS, customers)
    scores: dict[int, float] = {}
    schema = schema_of("demo", OrderReview)
    for number, ids in enumerate(np.array_split(np.arange(orders), FILES)):
        table = pa.table(
            {
                "order_id": ids,
                "cust_id": random.integers(0, customers, len(ids)),
                "amount": random.random(len(ids)).round(2),
            }
        )
        pq.write_table(table, os.path.join(folder, "orders", f"orders-{number}.parquet"))
        for row in table.to_pylist():
            question = TEMPLATE.format(**row, nation=nations[row["cust_id"]])
            answer = json.loads(answer_to([question], schema, Faults()))
            scores[row["order_id"]] = answer["score"]
    table = pa.table({"cust_id": np.arange(customers), "nation": nations})
    pq.write_table(table, os.path.join(folder, "customers", "customers.parquet"))
    return scores
