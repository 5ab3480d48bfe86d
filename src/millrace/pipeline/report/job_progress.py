"""A line for each step while a job runs, for terminals only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from millrace.pipeline.report.job_report import StepReport

_WINDOW_S: Final = 10.0
_HEADS: Final = ("step", "rows in", "rows out", "rows/s", "backlog", "calls", "errors", "left")


class JobProgress:
    """Draws the progress of each step. Silent without a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, steps: Sequence[StepReport]) -> None:
        """Draw the steps as they are now."""
        if self._live is None:
            return
        rates = self.rates(steps, time.monotonic())
        table = Table(*_HEADS, box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for step in steps:
            rate = rates[step.name]
            table.add_row(
                step.name,
                f"{step.rows_in:,}",
                "" if step.rows_out is None else f"{step.rows_out:,}",
                f"{rate:,.0f}",
                f"{step.backlog:,}",
                "" if step.calls is None else f"{step.calls:,}",
                f"{step.errors:,}",
                time_left(step.backlog, rate),
            )
        self._live.update(table, refresh=True)

    def rates(self, steps: Sequence[StepReport], now: float) -> dict[str, float]:
        """Rows a second of each step, over the last few seconds."""
        self._seen.append((now, {step.name: step.rows_in for step in steps}))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:  # noqa: PLR2004 - two points
            self._seen.popleft()
        began, before = self._seen[0]
        passed = now - began
        return {
            step.name: (step.rows_in - before.get(step.name, 0)) / passed if passed > 0 else 0.0
            for step in steps
        }


def time_left(backlog: int, rate: float) -> str:
    """How long the rows that wait now will take, in words."""
    if not backlog:
        return ""
    if rate <= 0:
        return "?"
    seconds = round(backlog / rate)
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}:{seconds:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"  # noqa: PLR2004
