"""A job that asks in batches, in a process that is killed. Its provider lives in the test's own.

The judges are the provider's invoice, its list of batches, and the rows that came out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    happened,
    hop,
    output,
    totals,
)

import millrace as mr
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Position
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.llm.batch_calls import KEY
from millrace.llm.models import Model
from millrace.llm.prompts import Prompt
from millrace.llm.templates import template_of
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_model import Calling, Map, StepOptions
from millrace.pipeline.prompts.batch_asking import BatchAsking, Mode
from millrace.pipeline.prompts.prompt_call import PromptCall
from millrace.testing.paid_models.batch_desk import BatchPlan
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels

ROWS = 40
PARTITIONS = 2
CONFIG = QUICK.with_options(job_batch_settle="1500ms", job_batch_poll="50ms", job_turn_ms=50)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def plan(number: int) -> BatchPlan:
    """The first batches come to a part of their requests."""
    return BatchPlan(seconds=0.2, expires=0.3 if number < 2 else 0.0)


def model(provider: str, service: PaidModels) -> Model:
    if provider == "openai":
        return mr.llm.openai("gpt-4o-mini", base_url=service.openai_url)
    return mr.llm.anthropic("claude-haiku-4-5", base_url=service.anthropic_url)


def job_hop(llm: Model, mode: Mode = "batch", budget: mr.Budget | None = None) -> Hop:
    prompt = Prompt(
        model=llm, template=template_of("p", "template", "number {x}", ["x"]), keep=("x",)
    )
    step = Map(
        name="ask",
        schema=pa.schema([("x", pa.int64()), ("answer", pa.string())]),
        calling=Calling(
            function=partial(PromptCall, prompt),
            name="m",
            rows="row",
            makes=True,
            is_async=True,
            takes_context=True,
            identity="1",
            setting=repr(llm),
            batches=BatchAsking(prompt=prompt, mode=mode),
        ),
        options=StepOptions(expensive=True, on_error="dead_letter", concurrency=4, budget=budget),
    )
    return hop(step, partitions=PARTITIONS)


def take_in(folder: Path) -> None:
    """The source, as a journal."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    fill(broker, range(ROWS), partitions=PARTITIONS)
    broker.close()


def child_runs(folder: str, llm: Model, mode: Mode, fault: str, budget: mr.Budget | None) -> None:
    """Run the job until all is done, going on where the last process was killed."""
    os.environ[VARIABLE] = fault
    broker = EmbeddedBroker.open(f"{folder}/mill")
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    bench = Bench(Path(folder), [job_hop(llm, mode, budget)], CONFIG, broker)
    while True:
        bench = bench.again()
        bench.run(workers=2)
        group = bench.hops[0].group
        units = [(group, hops.output_journal(JOB, "src", n)) for n in range(PARTITIONS)]
        positions = broker.positions(units)
        if not any(position.backlog for position in positions):
            break
        if budget is not None and is_spent(broker, bench.epoch, positions):
            break
        time.sleep(0.1)
    broker.close()


def is_spent(broker: Broker, run: int, positions: Sequence[Position]) -> bool:
    """Whether no unit with rows left has a batch: the budget is used up."""
    events = [event for event in happened(broker) if event.run == run]
    spent = {e.detail["journal"] for e in events if e.happened is JobEventKind.SPENT}
    return {p.journal for p in positions if p.backlog} <= spent


def run_to_end(
    folder: Path,
    llm: Model,
    *,
    faults: list[str],
    kill_after_s: list[float],
    budget: mr.Budget | None = None,
) -> int:
    """Run the job in processes, each killed as said, and the last one not; how many were killed."""
    plans = [(fault, None) for fault in faults] + [("", after) for after in kill_after_s]
    killed = 0
    for fault, after in [*plans, ("", None)]:
        child = CONTEXT.Process(target=child_runs, args=(str(folder), llm, "batch", fault, budget))
        child.start()
        child.join(60 if after is None else after)
        if child.is_alive():
            assert after is not None, "the job hangs"
            child.kill()
            child.join(60)
        killed += child.exitcode == -9
        child.close()
    return killed


def judge(folder: Path, service: PaidModels, *, provider: str) -> dict[str, Any]:
    """Every row came out once, with its answer; no batch was made twice; all charges are known."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    rows = sorted(zip(output(broker, "ask"), output(broker, "ask", "answer"), strict=True))
    counted = totals(broker, "ask")
    broker.close()
    assert rows == [(x, f"about number {x}") for x in range(ROWS)]
    desk = service.desk.batches if provider == "openai" else service.desk.message_batches
    keys = [batch.metadata.get(KEY) for batch in desk.batches]
    if provider == "openai":
        assert len(set(keys)) == len(keys), "a batch was made twice"
    paid = [charge.key for charge in charges(service.desk.invoice.path)]
    assert len(set(paid)) == len(paid) == ROWS, "a row was paid for twice"
    assert counted.calls == ROWS
    return {"batches": len(keys), "asked": json.dumps([len(b.requests) for b in desk.batches])}
