"""Bytes that a task writes to disk as they do not fit its memory.

Two parts of a task spill: its query, and the writer of its partitions. They run in the task's
thread, so the task's count is found there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class TaskSpill:
    """What a task has spilled so far."""

    bytes: int = 0


_of_task: Final[ContextVar[TaskSpill | None]] = ContextVar("task_spill", default=None)


@contextmanager
def task_spill() -> Iterator[TaskSpill]:
    """What this thread spills meanwhile is that of one task."""
    spilled = TaskSpill()
    token = _of_task.set(spilled)
    try:
        yield spilled
    finally:
        _of_task.reset(token)


def note_spill(size: int) -> None:
    """So many bytes more are on disk, or were."""
    of_task = _of_task.get(None)
    if of_task is not None:
        of_task.bytes += size
