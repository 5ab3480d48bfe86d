"""Tables of paid calls: the records that are written before calls, and the charge of each call.

A record carries the totals of its unit so far. So the calls and the dollars of one record are what
its totals have beyond those of the record before it, and their sums are the totals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import JournalInfo
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.paid import call_records, charges
from millrace.pipeline.paid.spend import NANO_USD
from millrace.pipeline.report.job_counts import units_of
from millrace.system.job_reading import SeenJob, all_stored, names_asked, seen_job
from millrace.system.job_tables import JOB, STEP
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import NUMBER, RATIO, TEXT, TIME, Asked, Column, SystemTable

_Totals = tuple[int, int]
"""Calls and billionths of a dollar of a unit so far."""
_NOTHING: Final = (0, 0)


def _calls(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, tables = asked.text("step"), [CALLS.schema.empty_table()]
    for name in names_asked(workspace, asked):
        with seen_job(workspace, name) as job:
            for part, info in call_journals(job, step):
                before: _Totals = _NOTHING
                for stored in all_stored(
                    job.journals, hops.calls_journal(name, part.name, info.id)
                ):
                    tables.append(_call_table(name, part.name, info, stored, before))
                    before = _totals(stored)
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
    """The youngest rows of `calls`, youngest first: reads the ends of the records alone.

    Of a record whose predecessor is not read, `made` and `usd` are null.
    """
    name = job.record.job
    ends: list[tuple[str, JournalInfo, pa.Table, _Totals | None]] = []
    for part, info in call_journals(job, step):
        journal = hops.calls_journal(name, part.name, info.id)
        end = job.journals.end_offset(journal)
        # Rows with an ACK take two offsets.
        first = max(job.journals.start_offset(journal), end - 2 * limit)
        tables = list(all_stored(job.journals, journal, first))
        if tables:
            stored = pa.concat_tables(tables, promote_options="default")
            ends.append((part.name, info, stored, None if first else _NOTHING))
    # What is too old is left out before anything is made of it: there may be very many units.
    times = np.concatenate([stored["at_us"].to_numpy() for _, _, stored, _ in ends] or [[]])
    oldest = int(np.partition(times, -limit)[-limit]) if len(times) > limit else 0
    young = []
    for step_name, info, stored, before in ends:
        # Times of one unit only rise: the young rows are the last ones.
        old = int(np.searchsorted(stored["at_us"].to_numpy(), oldest))
        known = _totals(stored.slice(0, old)) if old else before
        young.append(_call_table(name, step_name, info, stored.slice(old), known))
    rows = pa.concat_tables([CALLS.schema.empty_table(), *young])
    return rows.sort_by([("at", "descending")]).slice(0, limit)


def _totals(stored: pa.Table) -> _Totals:
    """The totals of the last of these records."""
    last = stored.slice(stored.num_rows - 1)
    dollars = last["total_nano_usd"][0].as_py() if "total_nano_usd" in stored.schema.names else 0
    return last["total_calls"][0].as_py(), dollars or 0


def _call_table(
    job: str, step: str, info: JournalInfo, stored: pa.Table, before: _Totals | None
) -> pa.Table:
    """Records of calls as rows of `calls`; columns that a record has not are null.

    `before` are the totals of the record in front of them, if they are known.
    """
    count = stored.num_rows
    given = {
        "job": pa.repeat(pa.scalar(job), count),
        "step": pa.repeat(pa.scalar(step), count),
        "journal": pa.repeat(pa.scalar(info.name), count),
        "record": stored[OFFSET],
        "at": stored["at_us"].cast(TIME),
        "epoch": stored["epoch"],
        "open": stored["calls"],
        "made": _rises(stored, "total_calls", None if before is None else before[0]),
        "usd": _dollars(_rises(stored, "total_nano_usd", None if before is None else before[1])),
    }
    return _with_schema(stored, given, CALLS.schema)


def _with_schema(stored: pa.Table, given: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns that are given, or are stored under this name; null where they are neither."""
    there = stored.schema.names
    columns = [
        given[f.name]
        if f.name in given
        else stored[f.name]
        if f.name in there
        else pa.nulls(stored.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _rises(stored: pa.Table, column: str, before: int | None) -> pa.Array:
    """By how much each total is above the one in front of it."""
    if column not in stored.schema.names:
        return pa.nulls(stored.num_rows, NUMBER)
    totals = stored[column].to_numpy()
    risen = np.diff(totals, prepend=0 if before is None else before)
    unknown = np.zeros(len(totals), bool)
    unknown[:1] = before is None
    return pa.array(risen, NUMBER, mask=unknown)


def _dollars(nano_usd: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.divide(nano_usd.cast(RATIO), float(NANO_USD))


def _charges(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    step, tables = asked.text("step"), [CHARGES.schema.empty_table()]
    for name in names_asked(workspace, asked):
        with seen_job(workspace, name) as job:
            tables += [
                _charge_table(name, part.name, stored)
                for part in _paid_parts(job, step)
                for stored in all_stored(job.journals, hops.charges_journal(name, part.name))
            ]
    return pa.concat_tables(tables)


def last_charge_rows(job: SeenJob, step: str | None, limit: int) -> pa.Table:
    """The youngest rows of `charges`, youngest first: reads the ends of their journals alone."""
    name, tables = job.record.job, [CHARGES.schema.empty_table()]
    for part in _paid_parts(job, step):
        journal = hops.charges_journal(name, part.name)
        if not job.journals.knows(journal):
            continue
        # Rows with an ACK take two offsets.
        end = job.journals.end_offset(journal)
        first = max(job.journals.start_offset(journal), end - 2 * limit)
        tables += [
            _charge_table(name, part.name, stored)
            for stored in all_stored(job.journals, journal, first)
        ]
    return pa.concat_tables(tables).sort_by([("at", "descending")]).slice(0, limit)


def _paid_parts(job: SeenJob, step: str | None) -> list[JobPart]:
    return [part for part in job.record.hops if part.expensive and step in (None, part.name)]


def _charge_table(job: str, step: str, stored: pa.Table) -> pa.Table:
    """Stored charges as rows of `charges`."""
    count = stored.num_rows
    given = {
        "job": pa.repeat(pa.scalar(job), count),
        "step": pa.repeat(pa.scalar(step), count),
        "at": stored["at_us"].cast(TIME),
        "usd": _dollars(stored["nano_usd"]),
        "seconds": pc.divide(stored["latency_us"].cast(RATIO), 1e6),
        "charge": stored[OFFSET],
    }
    return _with_schema(stored, given, CHARGES.schema)


def _recorded(names: Sequence[str]) -> tuple[Column, ...]:
    """Columns of the record of calls, as the record itself has them."""
    return tuple(
        Column(name, call_records.SCHEMA.field(name).type, _CALL_WORDS[name]) for name in names
    )


_CALL_WORDS: Final = {
    "kind": "`intent`: these calls are about to be made, or under way. `settled`: none is open. "
    "`retry`: as `intent`, of versions before calls slid.",
    "first": "The first offset of the rows that are called for.",
    "next": "The offset behind these rows.",
    "outcomes": "Outcomes of this epoch that the totals have counted.",
    "published": "Ranges of rows behind `first` whose results are published, as pairs of int64.",
    "total_calls": "Calls of this unit so far, over all runs.",
    "total_in_doubt": "Calls so far that a dead worker may have made.",
    "total_errors": "Calls so far that raised.",
    "total_skipped": "Rows so far that were left out.",
    "total_dead_letters": "Rows so far that became dead letters.",
    "total_refused": "Calls so far that a busy provider refused; they are in no other count.",
    "total_tokens_in": "Tokens of questions so far, without cached ones.",
    "total_tokens_cached": "Tokens of questions so far that the provider had in its cache.",
    "total_tokens_out": "Tokens of answers so far.",
    "total_nano_usd": "Billionths of a dollar so far.",
    "held_calls": "Calls that the unit holds of the step's budget.",
    "held_tokens": "Tokens that it holds of that budget.",
    "held_nano_usd": "Billionths of a dollar that it holds of that budget.",
}
_OWN: Final = ("at_us", "epoch", "calls")
CALLS: Final = SystemTable(
    name="calls",
    about="Records of paid calls, each written before its calls are made.",
    keys=("job", "step"),
    columns=(
        JOB,
        STEP,
        Column("journal", TEXT, "The journal whose rows are called for."),
        Column("record", NUMBER, "The offset of this record in the journal of records."),
        Column("at", TIME, "When it was written."),
        Column("epoch", NUMBER, "The epoch of the worker's lease."),
        Column(
            "made",
            NUMBER,
            "Calls that the record before it did not have; of the first one kept, all so far.",
        ),
        Column(
            "usd",
            RATIO,
            "Dollars that calls cost since the record before it; of the first one, all so far.",
        ),
        Column("open", NUMBER, "Calls that are recorded and have no outcome yet."),
        *_recorded([name for name in call_records.SCHEMA.names if name not in _OWN]),
    ),
    read=_calls,
)
CHARGES: Final = SystemTable(
    name="charges",
    about="Attempts of paid calls that ended, each with its cost, its time and its error.",
    keys=("job", "step"),
    columns=(
        JOB,
        STEP,
        Column("at", TIME, "When it ended."),
        Column("run", NUMBER, "The run of the job."),
        Column("journal", TEXT, "The journal of the rows of the call."),
        Column("offset", NUMBER, "The offset of the first of these rows."),
        Column("attempt", NUMBER, "Which attempt of the call it was."),
        Column("model", TEXT, "The model, if the function said which."),
        Column("tokens_in", NUMBER, "Tokens of the question, without cached ones."),
        Column("tokens_cached", NUMBER, "Tokens of the question that were cached."),
        Column("tokens_out", NUMBER, "Tokens of the answer."),
        Column("usd", RATIO, "Dollars."),
        Column("nano_usd", NUMBER, "Billionths of a dollar: whole numbers, whose sums are exact."),
        Column("seconds", RATIO, "How long it took."),
        Column("request_id", TEXT, "The provider's id of the request, if the function said it."),
        Column("error", TEXT, "The class of its error; empty if there was none."),
        Column("message", TEXT, "The error's text, its first 200 characters."),
        Column("charge", NUMBER, "The offset of this row in the journal of charges."),
    ),
    read=_charges,
)
assert {"latency_us", "nano_usd", "error"} <= set(charges.SCHEMA.names)
