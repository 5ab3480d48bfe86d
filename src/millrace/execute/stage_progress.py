"""What is shown while map tasks run: a query's title; a bar with tasks done, rows, bytes, rate."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from millrace.ids import QueryId, StageId
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.ordered_joins import OrderedJoin
from millrace.plan.nodes.read_stage import ReadStage, leaves
from millrace.plan.nodes.scan import Scan
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.storage import layout
from millrace.storage.store import Store
from millrace.text import human_bytes

_TITLE_INPUTS_MAX: Final = 3


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


def query_title(plan: Node, store: Store) -> str:
    """A query in a few words, for the runner's page: "orders join customers"."""
    names = list(dict.fromkeys(_input_name(leaf, store) for leaf in leaves(plan)))
    shown = (" join " if _has_join(plan) else " and ").join(names[:_TITLE_INPUTS_MAX])
    more = len(names) - _TITLE_INPUTS_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _input_name(leaf: Scan | ReadStage, store: Store) -> str:
    """A file's name, or its folder's if there are several or Spark wrote it."""
    if isinstance(leaf, ReadStage):
        return "DataFrame"
    path = leaf.source.shapes[0].file.path
    folder, file = os.path.split(path)
    if folder == store.path(layout.INPUTS):
        return "rows"
    is_part = len(leaf.source.shapes) > 1 or file.startswith("part-")
    return os.path.basename(folder) if is_part else file.split(".", 1)[0]


def _has_join(node: Node) -> bool:
    return isinstance(node, Join | OrderedJoin) or any(map(_has_join, node.children))


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
    """Shows how far a stage is. Silent without a terminal or a notebook."""

    def __init__(self, query_id: QueryId, stage_id: StageId, *, total: int) -> None:
        self._query_id, self._stage_id, self._total = query_id, stage_id, total
        self._bars: RichProgress | NotebookBars | None = None
        self._task: Any = None
        self._outputs = self._rows = self._bytes = 0
        self._started = time.monotonic()

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

    @property
    def is_shown(self) -> bool:
        """Whether somebody sees it."""
        return self._bars is not None

    def on_outputs(self, indexes: Sequence[MapTaskIndex]) -> None:
        """Map tasks have finished."""
        if self._bars is None or not indexes:
            return
        self._outputs += len(indexes)
        self._rows += sum(index.rows for index in indexes)
        self._bytes += sum(index.bytes for index in indexes)
        rate = self._rows / max(0.001, time.monotonic() - self._started)
        amount = f"{self._rows:,} rows  {human_bytes(self._bytes)}  {rate:,.0f} rows/s"
        self._bars.update(self._task, completed=self._outputs, amount=amount)
