"""A paid API with a budget: the job stops when it is spent, and continues with a larger one.

The API is a stand-in that writes an invoice. Some questions fail the first time and are retried.
One always fails and becomes a dead letter. No answer is paid for twice.
"""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa

import millrace as mr

FOLDER = "example-03"
INVOICE = Path(FOLDER, "invoice.log")


def answer(row: dict[str, int], context: mr.Context) -> dict[str, int]:
    """Call the API. A real one would get `context.key`, the same for each call of a row."""
    if row["id"] == 13:
        raise ValueError("the API refuses question 13")
    if row["id"] % 10 == 7 and context.attempt == 1:
        raise ConnectionError("the API is busy; nothing was charged")
    with INVOICE.open("a", encoding="utf-8") as invoice:
        invoice.write(f"{row['id']}\n")
    return {"id": row["id"], "answer": row["id"] ** 2}


def run(ws: mr.Workspace, budget: int) -> None:
    """Run the job with a budget of calls, over all runs, and print its progress."""
    job = ws.job("answers")
    questions = job.source("questions", ws.from_arrow(pa.table({"id": range(40)})))
    answers = questions.map(
        "answer",
        answer,
        schema="id bigint, answer bigint",
        expensive=True,
        max_calls=budget,
        batch_rows=1,  # Larger batches reserve calls in advance, and may not use all.
        retries=1,
        on_error="dead_letter",
    )
    answers.sink_parquet(f"{FOLDER}/answers")
    report = job.run()
    step = report.step("answer")
    print(f"budget {budget}: {report.state}. {step.calls_now} calls now, {step.calls} in all,")
    print(
        f"  {step.rows_in} questions done, {step.backlog} to do, {step.dead_letters} dead letters"
    )


shutil.rmtree(FOLDER, ignore_errors=True)
with mr.open(f"{FOLDER}/mill") as ws:
    run(ws, budget=25)
    run(ws, budget=100)
charged = Counter(INVOICE.read_text(encoding="utf-8").split())
print(f"invoice: {charged.total()} answers to {len(charged)} questions")
print(f"paid twice: {sum(count - 1 for count in charged.values())}")
