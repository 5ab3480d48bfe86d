"""A job that asks a model, in processes that are killed. Its provider lives in the test's own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from tests.unit.pipeline.prompts.prompt_job_kit import prompt_step
from tests.unit.pipeline.worker.worker_kit import JOB, QUICK, Bench, fill, hop, output, source

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.llm.models import Model
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobPart, JobRecord
from millrace.pipeline.report.job_report import StepReport
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import job_status

ROWS = 120
PARTITIONS = 2
CONFIG = QUICK.with_options(job_turn_ms=200)
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def take_in(folder: Path) -> None:
    """The source as journals, and the record of the job."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    fill(broker, range(ROWS), partitions=PARTITIONS)
    part = JobPart(
        name="ask", kind="prompt", inputs=("src",), prefixes=(source(),), expensive=True, depth=1
    )
    record = JobRecord(JOB, (JobPart(name="src", kind="DataFrame"), part))
    detail = {RECORDED: record.to_json()}
    started = JobEvent(at_us=1, run=0, happened=JobEventKind.STARTED, detail=detail)
    RunHistory.begin(broker, JOB).add(started)
    broker.close()


def child_runs(folder: str, llm: Model) -> None:
    """Run the job to its end, going on where the last process was killed."""
    broker = EmbeddedBroker.open(f"{folder}/mill")
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    job = hop(prompt_step(llm), partitions=PARTITIONS)
    Bench(Path(folder), [job], CONFIG, broker).run()
    broker.close()


def run_killed(folder: Path, llm: Model, kill_after_s: list[float]) -> int:
    """Run the job in processes that are killed after these times, then to its end; the kills."""
    killed = 0
    for after in [*kill_after_s, None]:
        child = CONTEXT.Process(target=child_runs, args=(str(folder), llm))
        child.start()
        child.join(60 if after is None else after)
        if child.is_alive():
            assert after is not None, "the job hangs"
            child.kill()
            child.join(60)
        killed += child.exitcode == -9
        child.close()
    return killed


def reported(folder: Path) -> tuple[list[int], StepReport]:
    """The rows that came out, and what is reported of the calls."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    rows = sorted(output(broker, "ask"))
    step = job_status(broker, JOB).step("ask")
    broker.close()
    return rows, step
