"""Sets up a turn of a worker on a unit of a step that asks in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from millrace.pipeline.batches.batch_records import outstanding
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_ranges import CallRangeBuffer
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.prompts.batch_asking import BatchAsking
from millrace.pipeline.worker.batched.batch_book import BatchBook
from millrace.pipeline.worker.batched.batch_turn import BatchTurn
from millrace.pipeline.worker.batched.batch_wallet import BatchWallet
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.read_ahead import ReadAhead
from millrace.pipeline.worker.step_chain import StepChain
from millrace.pipeline.worker.turn import LeasedUnit
from millrace.pipeline.worker.unit_leftovers import UnitLeftovers

BATCH_ROWS_MAX: Final = 50_000
"""The most questions of a batch; OpenAI's limit, which is the lower one."""

BATCH_BYTES_MAX: Final = 64 << 20
"""About how many bytes of rows a batch has; OpenAI takes files of 200 MB."""


def batch_turn(
    unit: LeasedUnit,
    asking: BatchAsking,
    chain: StepChain,
    publisher: Publisher,
    stack: contextlib.ExitStack,
    *,
    left: Callable[[], UnitLeftovers],
    caller: Callable[[], FunctionCaller],
    workspace: str,
) -> TurnEnd | None:
    """A turn of batches; None if the rows are to be asked for one by one."""
    book = BatchBook(unit)
    record = outstanding(book.last(), publisher.at)
    if record is None and not asking.makes_batches:
        return None
    leftovers, config = left(), unit.config
    if record is None and leftovers.is_in_doubt:
        return None  # Calls of a dead worker come first.
    publisher.machine.calls_end = leftovers.end
    made = caller()
    if made.options.budget is not None:
        publisher.read_budget()
    stack.callback(made.close)
    ahead = ReadAhead(
        unit.broker,
        unit.journal.name,
        publisher.at,
        config=config,
        end=unit.end,
        piece_rows=config.journal_read_rows_max,
        through=chain.first,
    )
    stack.callback(ahead.close)
    call_file = chain.open_file(CallFiles(workspace, unit))
    stack.callback(call_file.remove)
    buffer = _buffer(chain, made, publisher.at)
    return BatchTurn(
        unit,
        asking,
        record,
        caller=made,
        ranges=CallRangeReader(ahead, buffer, chain, unit, call_file),
        publisher=publisher,
        book=book,
        totals=leftovers.totals,
        wallet=BatchWallet(publisher, made.options.budget, leftovers.held, epoch=unit.lease.epoch),
    ).run()


def _buffer(chain: StepChain, caller: FunctionCaller, at: int) -> CallRangeBuffer:
    """Rows for a batch: as many as a provider takes, or the user wants."""
    return CallRangeBuffer(
        chain.schema,
        at,
        rows_max=min(caller.options.batch_rows or BATCH_ROWS_MAX, BATCH_ROWS_MAX),
        bytes_max=BATCH_BYTES_MAX,
        deaths=Deaths(),
    )
