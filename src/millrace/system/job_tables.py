"""Tables of jobs: their runs' events, steps and dead letters, from their journals."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.core import dead_letters, hops
from millrace.pipeline.core.job_record import STATE_STEPS, JobPart
from millrace.pipeline.report.job_report import StepReport
from millrace.pipeline.restore.job_state import JobState
from millrace.pipeline.run.job_status import job_status
from millrace.pipeline.run.lease_holders import running
from millrace.system.job_reading import all_stored, names_asked, seen_job, seen_runs
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import (
    NUMBER,
    RATIO,
    TEXT,
    TIME,
    YES_NO,
    Asked,
    Column,
    SystemTable,
    table_of,
)


def job_row(workspace: RestingWorkspace, name: str) -> dict[str, Any]:
    """A row of `jobs`: read from the journal of its runs alone."""
    with seen_runs(workspace, name) as job:
        lease = running(job.journals, name)
        entries = job.history.runs(None if lease is None else lease.epoch)
        last = entries[-1] if entries else None
        return {
            "job": name,
            "state": last.state if last else "running" if lease else "killed",
            "holder": None if lease is None else lease.holder,
            "runs": len(entries),
            "last_run": None if last is None else last.number,
            "began": None if last is None else last.started_us,
            "ended": None if last is None else last.ended_us,
            "who": None if last is None else last.who,
            "steps": len(job.record.hops),
        }


def _jobs(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    names = names_asked(workspace, asked)[: asked.limit]
    return table_of((job_row(workspace, name) for name in names), JOBS.columns)


def _steps(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for name in names_asked(workspace, asked):
        with seen_job(workspace, name) as job:
            status = job_status(job.journals, name, has_groups=False)
        rows += [step_row(name, job.record.part(step.name), step) for step in status.steps]
    return table_of(rows, STEPS.columns)


def step_row(job: str, part: JobPart | None, step: StepReport) -> dict[str, Any]:
    """A row of `steps`."""
    known = {name: value for name, value in asdict(step).items() if name in _STEP_COUNTS}
    return known | {
        "job": job,
        "step": step.name,
        "kind": part.kind if part else None,
        "function": part.function or None if part else None,
        "expensive": part.expensive if part else None,
        "target": part.target or None if part else None,
        "workers": part.workers if part else None,
        "rate": part.rate if part else None,
        "max_calls": part.max_calls if part else None,
    }


def _events(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for name in names_asked(workspace, asked):
        with seen_runs(workspace, name) as job:
            rows += [
                {
                    "job": name,
                    "at": event.at_us,
                    "run": event.run,
                    "event": event.happened.value,
                    "step": event.step or None,
                    "detail": json.dumps(event.detail, sort_keys=True),
                }
                for event in job.history.events
            ]
    return table_of(rows, EVENTS.columns)


def _dead_letters(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, tables = asked.text("step"), [DEAD_LETTERS.schema.empty_table()]
    for name in names_asked(workspace, asked):
        with seen_job(workspace, name) as job:
            for part in job.record.hops:
                for called in (*part.fused, part.name):
                    if step in (None, called):
                        journal = hops.dead_letters(name, called)
                        tables += [
                            letter_table(name, called, rows)
                            for rows in all_stored(job.journals, journal)
                        ]
    return pa.concat_tables(tables)


def _states(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, rows = asked.text("step"), list[dict[str, Any]]()
    for name in names_asked(workspace, asked):
        with seen_job(workspace, name) as job:
            for part in job.record.hops:
                has_state = part.kind in STATE_STEPS and job.journals.list(
                    hops.state_prefix(name, part.name)
                )
                if not has_state or step not in (None, part.name):
                    continue
                state = JobState(job.journals, workspace.store.root, name, part.name).to_arrow()
                rows += [
                    {"job": name, "step": part.name, "row": dead_letters.json_of(row)}
                    for row in state.slice(0, asked.limit).to_pylist()
                ]
    return table_of(rows, STATES.columns)


def letter_table(job: str, step: str, stored: pa.Table) -> pa.Table:
    """Dead letters as rows of `dead_letters`."""
    count = stored.num_rows
    first_line = pc.list_element(pc.split_pattern(stored["error"], "\n", max_splits=1), 0)
    kinds = [dead_letters.kind_of(error) for error in stored["error"].to_pylist()]
    columns = [
        pa.repeat(pa.scalar(job), count),
        pa.repeat(pa.scalar(step), count),
        stored["at_us"].cast(TIME),
        *(stored[name] for name in ("run", "journal", "offset", "key")),
        pa.array(kinds, pa.string()),
        first_line,
        *(stored[name] for name in ("error", "traceback", "row_json")),
        stored[OFFSET],
    ]
    return pa.Table.from_arrays(
        [column.cast(f.type) for column, f in zip(columns, DEAD_LETTERS.schema, strict=True)],
        schema=DEAD_LETTERS.schema,
    )


_STEP_COUNTS: Final = (
    "rows_in",
    "rows_out",
    "backlog",
    "calls",
    "calls_now",
    "reused",
    "in_doubt",
    "errors",
    "skipped",
    "dead_letters",
    "state_rows",
    "state_bytes",
    "rows_per_s",
)
JOB: Final = Column("job", TEXT, "The name of the job.")
STEP: Final = Column("step", TEXT, "The name of the step.")
JOBS: Final = SystemTable(
    name="jobs",
    about="Jobs, by name, with their last run.",
    keys=("job",),
    columns=(
        JOB,
        Column("state", TEXT, "Of the last run: `running`, `finished`, `failed`, `killed`, ..."),
        Column("holder", TEXT, "The process that runs it now."),
        Column("runs", NUMBER, "Runs so far."),
        Column("last_run", NUMBER, "The number of the last run."),
        Column("began", TIME, "When the last run began."),
        Column("ended", TIME, "When the last run ended; null if it goes on or was killed."),
        Column("who", TEXT, "The user, host and process of the last run."),
        Column("steps", NUMBER, "Steps and sinks that do work."),
    ),
    read=_jobs,
)
STEPS: Final = SystemTable(
    name="steps",
    about="Steps and sinks of jobs, with their work over all runs.",
    keys=("job",),
    columns=(
        JOB,
        STEP,
        Column("kind", TEXT, "The call that made it: `map`, `filter`, `sink_parquet`, ..."),
        Column("function", TEXT, "The function that it calls."),
        Column("expensive", YES_NO, "Whether its calls are recorded, each made once."),
        Column("target", TEXT, "What a sink fills."),
        Column("workers", NUMBER, "Most workers at a time, if that is limited."),
        Column("rate", RATIO, "Most calls a second, if that is limited."),
        Column("max_calls", NUMBER, "Most calls, if there is a budget."),
        Column("rows_in", NUMBER, "Input rows that are done."),
        Column("rows_out", NUMBER, "Rows that it made; null if only its target knows."),
        Column("backlog", NUMBER, "Input rows that are not done."),
        Column("calls", NUMBER, "Calls that were made; null if its calls are not recorded."),
        Column("calls_now", NUMBER, "Calls of the last run."),
        Column("reused", NUMBER, "Input rows that were done before the last run began."),
        Column("in_doubt", NUMBER, "Calls that a dead worker may have made."),
        Column("errors", NUMBER, "Calls that raised."),
        Column("skipped", NUMBER, "Rows that were left out."),
        Column("dead_letters", NUMBER, "Rows that became dead letters."),
        Column("state_rows", NUMBER, "Rows that it remembers; null for steps without state."),
        Column("state_bytes", NUMBER, "About how many bytes of memory these rows take."),
        Column("rows_per_s", RATIO, "Input rows done in the last run, by its seconds."),
    ),
    read=_steps,
)
EVENTS: Final = SystemTable(
    name="events",
    about="What happened to jobs, in order: starts, failures, deaths of workers, ends.",
    keys=("job",),
    columns=(
        JOB,
        Column("at", TIME, "When it happened."),
        Column("run", NUMBER, "The run of the job."),
        Column("event", TEXT, "`started`, `failed`, `held`, `died`, `reset`, `ended`, ..."),
        Column("step", TEXT, "The step that it is about, if any."),
        Column("detail", TEXT, "More about it, as JSON."),
    ),
    read=_events,
)
DEAD_LETTERS: Final = SystemTable(
    name="dead_letters",
    about="Rows that a step's function refused, with the error.",
    keys=("job", "step"),
    columns=(
        JOB,
        STEP,
        Column("at", TIME, "When it was refused."),
        Column("run", NUMBER, "The run of the job."),
        Column("journal", TEXT, "The journal of the row."),
        Column("offset", NUMBER, "The offset of the row."),
        Column("key", TEXT, "The key of the row."),
        Column("kind", TEXT, "The class of the error."),
        Column("error", TEXT, "The first line of the error."),
        Column("message", TEXT, "The whole error."),
        Column("traceback", TEXT, "Where it was raised."),
        Column("row", TEXT, "The row as JSON."),
        Column("letter", NUMBER, "The offset of the letter in its own journal."),
    ),
    read=_dead_letters,
)
STATES: Final = SystemTable(
    name="states",
    about="What steps with state remember, row by row.",
    keys=("job", "step"),
    columns=(
        JOB,
        STEP,
        Column("row", TEXT, "A row of the state as JSON: `row->>'total'` is its column `total`."),
    ),
    read=_states,
)
assert {"error", "row_json"} <= set(dead_letters.SCHEMA.names)
