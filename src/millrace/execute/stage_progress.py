"""A bar while map tasks run, in terminals and notebooks: tasks done, rows, bytes, rate."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from millrace.execute.notebook_progress import NotebookBars, in_notebook
from millrace.ids import QueryId, StageId
from millrace.shuffle import runs
from millrace.shuffle.attempts import Finished
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reader import index_or_none, list_attempts
from millrace.storage.store import Store
from millrace.text import human_bytes

_LOOK_S: Final = 0.5


def print_summary(shuffle: Shuffle) -> None:
    """One line about a finished shuffle, for a terminal only."""
    console = Console(stderr=True)
    if console.is_terminal:
        done = str(shuffle.report).splitlines()[0]
        console.print(
            f"shuffle {shuffle.query_id}: {shuffle.rows:,} rows, {human_bytes(shuffle.bytes)} in "
            f"{shuffle.partitions} partitions; {done}",
            highlight=False,
        )


class _Board:
    """The bars of this process: stages that run together share one area of the screen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: RichProgress | NotebookBars | None = None
        self._users = 0

    def open(self) -> RichProgress | NotebookBars | None:
        """The board to draw on; None without a terminal or a notebook."""
        with self._lock:
            if self._bars is None:
                self._bars = NotebookBars() if in_notebook() else _terminal_bars()
                if self._bars is None:
                    return None
                self._bars.start()
            self._users += 1
            return self._bars

    def close(self) -> None:
        """Remove the board when its last user is done."""
        with self._lock:
            self._users -= 1
            if not self._users and self._bars is not None:
                self._bars.stop()
                self._bars = None


def _terminal_bars() -> RichProgress | None:
    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    return RichProgress(
        TextColumn("run {task.fields[run]}, stage {task.fields[stage]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


_board: Final = _Board()


class StageProgress:
    """Watches the indexes appear. Silent without a terminal or a notebook."""

    def __init__(self, store: Store, query_id: QueryId, stage_id: StageId, *, total: int) -> None:
        self._store, self._query_id, self._stage_id = store, query_id, stage_id
        self._total = total
        self._bars: RichProgress | NotebookBars | None = None
        self._task: Any = None
        self._seen: dict[int, tuple[int, int]] = {}
        self._started = self._looked = time.monotonic()

    def __enter__(self) -> Self:
        self._bars = _board.open()
        if self._bars is not None:
            self._task = self._bars.add_task(
                "map", total=self._total, run=self._query_id, stage=self._stage_id, amount=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.remove_task(self._task)
            _board.close()

    def look(self) -> None:
        """Count what is finished, at most twice a second and only for a terminal."""
        if self._bars is None or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for task in runs.map_tasks(self._store, self._query_id, self._stage_id):
            if task.map_task not in self._seen:
                for attempt in list_attempts(self._store, task):
                    if isinstance(attempt, Finished):
                        self._count(task.map_task, attempt)
        rows = sum(rows for rows, _ in self._seen.values())
        size = sum(size for _, size in self._seen.values())
        rate = rows / max(0.001, self._looked - self._started)
        amount = f"{rows:,} rows  {human_bytes(size)}  {rate:,.0f} rows/s"
        self._bars.update(self._task, completed=len(self._seen), amount=amount)

    def _count(self, map_task: int, attempt: Finished) -> None:
        index = index_or_none(self._store, attempt.id)
        if index is not None:
            self._seen[map_task] = (index.rows, index.bytes)
