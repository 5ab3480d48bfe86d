"""Gives dead letters back to their step: the next run of the job takes their rows once more.

Rows of letters go to a journal that the step's hop reads, and in the same transaction it is
recorded which letters they are. Invariant: each letter is retried once, whatever is killed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from millrace.errors import SchemaMismatch, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.names import existing
from millrace.pipeline.core import dead_letters, hops
from millrace.pipeline.letters.open_letters import OpenLetter, open_letters
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.reset import finish_reset, hold_job

RETRIES_SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("letter", pa.int64(), nullable=False),
    ]
)
"""`letter` is the offset of a dead letter that was retried."""
LETTER_ROWS_MAX: Final = 1_000
"""Rows of one transaction."""


def retry_dead_letters(
    broker: Broker,
    job: str,
    step: str | None = None,
    kind: str | None = None,
    *,
    rows_max: int = LETTER_ROWS_MAX,
) -> dict[str, int]:
    """Give dead letters back to their steps; returns how many rows each step gets.

    Args:
        broker: the broker of the job's journals.
        job: the name of the job, which nobody runs meanwhile.
        step: only those of this step.
        kind: only those of this class of errors, by its name.
        rows_max: rows of one transaction.
    """
    history = RunHistory.open(broker, job)
    lease = hold_job(broker, job)
    try:
        finish_reset(history, lease)
        record = history.record()
        parts = () if record is None else record.hops
        called = {name: part for part in parts for name in (*part.fused, part.name)}
        if step is not None and step not in called:
            raise UserError(
                f"job {job!r} has no step {step!r}\n  found: {existing(step, list(called))}\n"
                "  to fix: give one of these"
            )
        chosen = called if step is None else {step: called[step]}
        counts: dict[str, int] = {}
        for name, part in chosen.items():
            letters = [
                each for each in open_letters(broker, job, name) if kind in (None, each.kind)
            ]
            journal = hops.retried_journal(job, part.name, name)
            retries = hops.retries_journal(job, name)
            for begin in range(0, len(letters), rows_max):
                _give_back(broker, journal, retries, letters[begin : begin + rows_max], lease)
                counts[name] = counts.get(name, 0) + len(letters[begin : begin + rows_max])
        return counts
    finally:
        broker.release(lease)


def _give_back(
    broker: Broker, journal: str, retries: str, letters: Sequence[OpenLetter], lease: Lease
) -> None:
    """Give the rows of some letters back, and record that, in one transaction."""
    rows = [dead_letters.from_arrow(each.stored["row_arrow"]) for each in letters]
    try:
        for schema in dict.fromkeys(table.schema for table in rows):
            broker.create(journal, schema)
    except SchemaMismatch as error:
        step = journal.rpartition("/")[2]
        raise UserError(
            f"dead letters of {step!r} have other columns than those that were retried before\n"
            f"  found: {error}\n  to fix: job.reset({step!r}) makes all its rows again"
        ) from error
    broker.create(retries, RETRIES_SCHEMA)
    now_us = time.time_ns() // 1000
    noted = [{"at_us": now_us, "letter": each.offset} for each in letters]
    fault("job.letters.before", letters[0].offset)
    with broker.transaction(lease) as t:
        t.append(journal, pa.concat_tables(rows))
        t.append(retries, pa.RecordBatch.from_pylist(noted, RETRIES_SCHEMA))
    fault("job.letters.after", letters[0].offset)
