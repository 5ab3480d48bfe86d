"""Explains a job together with the progress of its earlier runs."""

from __future__ import annotations

from millrace.journal.broker import Broker
from millrace.pipeline.core.hops import runs_journal
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.define.explain_job import StepProgress, explain
from millrace.pipeline.define.job_changes import compare
from millrace.pipeline.define.job_recording import records_of, set_back
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import job_status


def explain_progress(broker: Broker, record: JobRecord) -> str:
    """The text for a job: its hops, its progress so far, and its changes since the last run."""
    if not broker.list(runs_journal(record.job)):
        return explain(record)
    history = RunHistory.open(broker, record.job)
    changes = compare(records_of(history.events), record, since=set_back(history.events))
    done = {
        step.name: StepProgress(rows=step.rows_in, backlog=step.backlog, calls=step.calls)
        for step in job_status(broker, record.job).steps
    }
    for part in record.parts:
        if saved := history.taken_in(part.name):
            done[part.name] = StepProgress(rows=sum(event.detail["rows"] for event in saved))
    return explain(record, done=done, changes=changes)
