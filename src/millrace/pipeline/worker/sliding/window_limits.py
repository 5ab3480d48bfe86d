"""How many calls a turn has under way and records ahead, by the options of its step."""

from __future__ import annotations

from typing import Final

from millrace.durations import ms
from millrace.pipeline.calling.function_caller import JOB_RETRY_MS_MAX
from millrace.pipeline.core.job_model import FunctionSink, Map, StepOptions
from millrace.pipeline.core.paid_step import WindowLimits
from millrace.pipeline.worker.turn import LeasedUnit

JOB_EXPENSIVE_ROWS: Final = 16
"""Rows of a batch of an expensive step's function, unless it says otherwise. So many calls for
rows may be recorded at once, too, if fewer are made at once."""

JOB_WINDOW_CALLS: Final = 1024
"""Calls between the first and the last one that is not published, at least."""

_WINDOW_TIMES: Final = 16
"""The same, for each call that is made at once."""


JOB_TOKEN_ROWS: Final = 256
"""The same, if tokens limit a batch."""


def call_rows(options: StepOptions) -> int:
    """Most rows of a call of a function that gets batches."""
    default = JOB_EXPENSIVE_ROWS if options.batch_tokens is None else JOB_TOKEN_ROWS
    return options.batch_rows or default


def window_limits(unit: LeasedUnit, step: Map | FunctionSink, *, has_front: bool) -> WindowLimits:
    """The limits of a turn. `has_front`: functions run in front of the step."""
    config, options, slots = unit.config, step.options, step.options.concurrency
    is_batch = step.calling.rows == "batch"
    rows_max = options.batch_rows or max(JOB_EXPENSIVE_ROWS, 2 * slots)
    return WindowLimits(
        concurrency=slots,
        ahead_max=max(1, slots) if is_batch else max(1, rows_max - slots),
        calls_max=max(JOB_WINDOW_CALLS, _WINDOW_TIMES * slots),
        linger_us=1000 * config.job_linger_ms,
        drains_front=has_front and (slots == 1 or unit.deaths.has_some),
        backoff_us=1000 * ms(config.job_retry_wait),
        backoff_us_max=1000 * JOB_RETRY_MS_MAX,
    )
