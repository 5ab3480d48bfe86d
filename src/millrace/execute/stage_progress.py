"""A bar while map tasks run, in terminals and notebooks: tasks done, rows, bytes, rate."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

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


def in_notebook() -> bool:
    """Whether this process shows its output in a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


@dataclass(slots=True)
class _Bar:
    title: str
    total: int
    completed: int = 0
    amount: str = ""

    def html(self) -> str:
        """The bar and what is beside it."""
        part = self.completed / self.total if self.total else 0.0
        return (
            "<div style='font-family: monospace; font-size: 12px'>"
            f"{escape(self.title)} <progress value='{part:.3f}' max='1'></progress> "
            f"{self.completed}/{self.total} {escape(self.amount)}</div>"
        )


class NotebookBars:
    """The bars of the stages that run now, with the calls of rich's `Progress`."""

    def __init__(self) -> None:
        self._bars: dict[int, _Bar] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._handle: Any = None

    def start(self) -> None:
        """Make room below the cell."""
        self._handle = _shown().display(_shown().HTML(""), display_id=True)

    def stop(self) -> None:
        """Leave nothing behind."""
        self._bars.clear()
        self._draw()

    def add_task(self, _: str, *, total: int, run: int, stage: int, amount: str) -> int:
        """A new bar."""
        with self._lock:
            self._next += 1
            self._bars[self._next] = _Bar(f"run {run}, stage {stage}", total, 0, amount)
            number = self._next
        self._draw()
        return number

    def update(self, number: int, *, completed: int, amount: str) -> None:
        """A bar that got on."""
        bar = self._bars.get(number)
        if bar is not None:
            bar.completed, bar.amount = completed, amount
            self._draw()

    def remove_task(self, number: int) -> None:
        """A bar whose stage is done."""
        with self._lock:
            self._bars.pop(number, None)
        self._draw()

    def _draw(self) -> None:
        if self._handle is None:
            return
        with self._lock:
            lines = [bar.html() for bar in self._bars.values()]
        self._handle.update(_shown().HTML("".join(lines)))


def _shown() -> Any:  # noqa: ANN401 - a module that only notebooks have
    return importlib.import_module("IPython.display")


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
