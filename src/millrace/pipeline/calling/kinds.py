"""Calls a step's function for a batch of rows, in the way that the function wants."""

from __future__ import annotations

from millrace.pipeline.calling.batch import Batch
from millrace.pipeline.calling.batch_async import run_async
from millrace.pipeline.calling.caller import NO_PAST, Called, Caller, Hooks, Past
from millrace.pipeline.calling.flight import Flight
from millrace.pipeline.core.rows import Rows


def call_for(
    caller: Caller,
    rows: Rows,
    journal_id: int,
    hooks: Hooks,
    *,
    in_doubt: bool = False,
    flight: Flight | None = None,
    past: Past = NO_PAST,
) -> Called:
    """Call the function for all rows, or until it fails.

    Args:
        caller: of the step.
        rows: to call for.
        journal_id: of the journal they come from.
        hooks: what has to happen before calls.
        in_doubt: whether a process that ended may have made these calls.
        flight: where calls are marked, so that the next process can tell which ended this one.
        past: what processes that ended left of these rows.
    """
    marked = flight or Flight(caller.options.concurrency)
    batch = Batch(caller, rows, journal_id, hooks, flight=marked, past=past, in_doubt=in_doubt)
    calling = caller.step.calling
    if calling.rows == "batch":
        called = batch.as_whole()
    elif calling.is_async:
        called = run_async(batch)
    else:
        called = batch.row_by_row()
    called.out = caller.passing.put_away(called.out)
    return called
