"""Calls the function of a cheap step for a batch of rows: row by row, as a batch, or async."""

from __future__ import annotations

from collections.abc import Callable

from millrace.pipeline.calling.async_batch import run_async
from millrace.pipeline.calling.call_batch import CallBatch
from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import NO_PAST, BatchOutcome, KnownCalls
from millrace.pipeline.core.hop_rows import HopRows


def call_for(
    caller: FunctionCaller,
    rows: HopRows,
    journal_id: int,
    sleep: Callable[[float], None],
    *,
    call_file: CallFile | None = None,
    past: KnownCalls = NO_PAST,
) -> BatchOutcome:
    """Call the function for all rows, or until it fails.

    Args:
        caller: the caller of the step's function.
        rows: the rows to call for.
        journal_id: the journal that the rows come from.
        sleep: waits before calls; raises `Stopped` if the worker is to end.
        call_file: marks the calls, so that the next process knows which of them ended this one.
        past: attempts that dead processes made for these rows.
    """
    marked = call_file or CallFile(caller.options.concurrency)
    batch = CallBatch(caller, rows, journal_id, sleep, call_file=marked, past=past)
    calling = caller.step.calling
    if calling.rows == "batch":
        called = batch.as_whole()
    elif calling.is_async:
        called = run_async(batch)
    else:
        called = batch.row_by_row()
    called.out = caller.passing.store_large(called.out)
    return called
