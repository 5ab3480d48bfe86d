"""A bar in terminals while map tasks run: tasks done, rows, bytes, rows a second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from millrace.errors import FormatError
from millrace.ids import QueryId, StageId
from millrace.shuffle import runs
from millrace.shuffle.attempts import Finished
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reader import find_index, list_attempts
from millrace.shuffle.store import LocalStore
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


class Progress:
    """Watches the indexes appear. Silent when nobody is looking."""

    def __init__(
        self, store: LocalStore, query_id: QueryId, stage_id: StageId, *, total: int
    ) -> None:
        self._store, self._query_id, self._stage_id = store, query_id, stage_id
        console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("shuffle {task.fields[run]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("map", total=total, run=query_id, amount="")
        self._seen: dict[int, tuple[int, int]] = {}
        self._started = self._looked = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def look(self) -> None:
        """Count what is finished, at most twice a second and only for a terminal."""
        if self._bar.disable or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for task in runs.map_tasks(self._store, self._query_id, self._stage_id):
            if task.map_task not in self._seen:
                for found in list_attempts(self._store, task):
                    if isinstance(found, Finished):
                        self._count(task.map_task, found)
        rows = sum(rows for rows, _ in self._seen.values())
        size = sum(size for _, size in self._seen.values())
        rate = rows / max(0.001, self._looked - self._started)
        amount = f"{rows:,} rows  {human_bytes(size)}  {rate:,.0f} rows/s"
        self._bar.update(self._task, completed=len(self._seen), amount=amount)

    def _count(self, map_task: int, found: Finished) -> None:
        try:
            index = find_index(self._store, found.id)
        except FormatError:
            return
        if index is not None:
            self._seen[map_task] = (index.rows, index.bytes)
