"""Calls a step's function for a batch of rows, in the way that the function wants."""

from __future__ import annotations

from millrace.pipeline.calling.batch import Batch
from millrace.pipeline.calling.batch_async import run_async
from millrace.pipeline.calling.caller import Called, Caller, Hooks
from millrace.pipeline.core.rows import Rows


def call_for(
    caller: Caller, rows: Rows, journal_id: int, hooks: Hooks, *, in_doubt: bool = False
) -> Called:
    """Call the function for all rows, or until it fails."""
    batch = Batch(caller, rows, journal_id, hooks, in_doubt=in_doubt)
    calling = caller.step.calling
    if calling.rows == "batch":
        called = batch.as_whole()
    elif calling.is_async:
        called = run_async(batch)
    else:
        called = batch.row_by_row()
    called.out = caller.passing.put_away(called.out)
    return called
