"""Tables of jobs: their runs' events, steps, calls and dead letters, from their journals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import JournalInfo
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.pipeline.core import dead_letters, hops
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.paid import call_records
from millrace.pipeline.report.job_counts import units_of
from millrace.pipeline.report.job_report import StepReport
from millrace.pipeline.run.job_status import job_status, running
from millrace.system.job_reading import SeenJob, names_of_jobs, seen_job, seen_runs
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

_READ_ROWS: Final = 100_000


def _names(workspace: RestingWorkspace, asked: Asked) -> list[str]:
    wanted = asked.text("job")
    return [wanted] if wanted is not None else names_of_jobs(workspace)


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
    names = _names(workspace, asked)[: asked.limit]
    return table_of((job_row(workspace, name) for name in names), JOBS.columns)


def _steps(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for name in _names(workspace, asked):
        with seen_job(workspace, name) as job:
            status = job_status(job.journals, name)
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
    for name in _names(workspace, asked):
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


def _calls(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, tables = asked.text("step"), [CALLS.schema.empty_table()]
    for name in _names(workspace, asked):
        with seen_job(workspace, name) as job:
            tables += [
                _call_table(name, part.name, info, rows)
                for part, info in call_journals(job, step)
                for rows in _read_all(job.journals, hops.calls_journal(name, part.name, info.id))
            ]
    return pa.concat_tables(tables)


def call_journals(job: SeenJob, step: str | None = None) -> Iterator[tuple[JobPart, JournalInfo]]:
    """The units of the steps whose calls are recorded, each with the journal that it reads."""
    there = {info.name: info for info in job.journals.list()}
    for part in job.record.hops:
        if not part.expensive or step not in (None, part.name):
            continue
        for info in units_of(part, there):
            if hops.calls_journal(job.record.job, part.name, info.id) in there:
                yield part, info


def last_call_rows(job: SeenJob, step: str | None, limit: int) -> pa.Table:
    """The youngest rows of `calls`, youngest first: reads the ends of the records alone."""
    name = job.record.job
    ends: list[tuple[str, JournalInfo, pa.Table]] = []
    for part, info in call_journals(job, step):
        journal = hops.calls_journal(name, part.name, info.id)
        end = job.journals.end_offset(journal)
        # Rows with an ACK take two offsets.
        first = max(job.journals.start_offset(journal), end - 2 * limit)
        tables = list(_read_all(job.journals, journal, first))
        if tables:
            ends.append((part.name, info, pa.concat_tables(tables, promote_options="default")))
    # What is too old is left out before anything is made of it: there may be very many units.
    times = np.concatenate([stored["at_us"].to_numpy() for *_, stored in ends] or [np.empty(0)])
    oldest = int(np.partition(times, -limit)[-limit]) if len(times) > limit else 0
    young = [
        _call_table(name, step_name, info, stored.filter(pc.field("at_us") >= oldest))
        for step_name, info, stored in ends
    ]
    rows = pa.concat_tables([CALLS.schema.empty_table(), *young])
    return rows.sort_by([("at", "descending")]).slice(0, limit)


def _call_table(job: str, step: str, info: JournalInfo, stored: pa.Table) -> pa.Table:
    """Records of calls as rows of `calls`; columns that a record has not are null."""
    count = stored.num_rows
    given = {
        "job": pa.repeat(pa.scalar(job), count),
        "step": pa.repeat(pa.scalar(step), count),
        "journal": pa.repeat(pa.scalar(info.name), count),
        "record": stored[OFFSET],
        "at": stored["at_us"].cast(TIME),
        "run": stored["epoch"],
    }
    columns = [
        given[f.name]
        if f.name in given
        else stored[f.name]
        if f.name in stored.schema.names
        else pa.nulls(count, f.type)
        for f in CALLS.schema
    ]
    return pa.Table.from_arrays(columns, schema=CALLS.schema)


def _dead_letters(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, tables = asked.text("step"), [DEAD_LETTERS.schema.empty_table()]
    for name in _names(workspace, asked):
        with seen_job(workspace, name) as job:
            for part in job.record.hops:
                for called in (*part.fused, part.name):
                    if step in (None, called):
                        journal = hops.dead_letters(name, called)
                        tables += [
                            letter_table(name, called, rows)
                            for rows in _read_all(job.journals, journal)
                        ]
    return pa.concat_tables(tables)


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


def _read_all(
    journals: RestingJournals, name: str, offset: int | None = None
) -> Iterator[pa.Table]:
    """Stored rows of a journal from an offset on; nothing if there is no such journal."""
    if not journals.knows(name):
        return
    at = int(journals.start_offset(name)) if offset is None else offset
    while True:
        fetched = journals.read(name, at, rows_max=_READ_ROWS)
        if fetched.num_rows:
            yield fetched.stored()
        if fetched.next_offset >= fetched.end_offset or fetched.next_offset == at:
            return
        at = int(fetched.next_offset)


def _recorded(names: Sequence[str]) -> tuple[Column, ...]:
    """Columns of the record of calls, as the record itself has them."""
    return tuple(
        Column(name, call_records.SCHEMA.field(name).type, _CALL_WORDS.get(name, "As recorded."))
        for name in names
    )


_CALL_WORDS: Final = {
    "kind": "`intent` before calls, `retry` before those that raised are made again, `settled`.",
    "first": "The first offset of the rows that are called for.",
    "next": "The offset behind these rows.",
    "calls": "How many calls: one for each row, or one for the batch.",
    "total_calls": "Calls of this unit so far, over all runs.",
    "total_in_doubt": "Calls so far that a dead worker may have made.",
    "total_errors": "Calls so far that raised.",
    "total_skipped": "Rows so far that were left out.",
    "total_dead_letters": "Rows so far that became dead letters.",
}
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
    "rows_per_s",
)
_JOB: Final = Column("job", TEXT, "The name of the job.")
_STEP: Final = Column("step", TEXT, "The name of the step.")
JOBS: Final = SystemTable(
    name="jobs",
    about="Jobs, by name, with their last run.",
    keys=("job",),
    columns=(
        _JOB,
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
        _JOB,
        _STEP,
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
        Column("rows_per_s", RATIO, "Input rows done in the last run, by its seconds."),
    ),
    read=_steps,
)
EVENTS: Final = SystemTable(
    name="events",
    about="What happened to jobs, in order: starts, failures, deaths of workers, ends.",
    keys=("job",),
    columns=(
        _JOB,
        Column("at", TIME, "When it happened."),
        Column("run", NUMBER, "The run of the job."),
        Column("event", TEXT, "`started`, `failed`, `held`, `died`, `reset`, `ended`, ..."),
        Column("step", TEXT, "The step that it is about, if any."),
        Column("detail", TEXT, "More about it, as JSON."),
    ),
    read=_events,
)
CALLS: Final = SystemTable(
    name="calls",
    about="Records of paid calls, each written before its calls are made.",
    keys=("job", "step"),
    columns=(
        _JOB,
        _STEP,
        Column("journal", TEXT, "The journal whose rows are called for."),
        Column("record", NUMBER, "The offset of this record in the journal of records."),
        Column("at", TIME, "When it was written."),
        Column("run", NUMBER, "The epoch of the worker's lease."),
        *_recorded([name for name in call_records.SCHEMA.names if name not in ("at_us", "epoch")]),
    ),
    read=_calls,
)
DEAD_LETTERS: Final = SystemTable(
    name="dead_letters",
    about="Rows that a step's function refused, with the error.",
    keys=("job", "step"),
    columns=(
        _JOB,
        _STEP,
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
assert {"error", "row_json"} <= set(dead_letters.SCHEMA.names)
