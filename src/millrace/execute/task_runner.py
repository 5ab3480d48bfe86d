"""The port to the runner of tasks: Spark in production, threads in tests.

Invariant: all that a task needs to know of its runner reaches it as a value, so `execute/` runs
without pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from millrace.limits import GIB

TASK_BYTES_MAX: Final = 4 * GIB
"""How much input one task takes on at most, if it is more than one map task."""


@dataclass(frozen=True, slots=True)
class TaskTry:
    """One try of a task: the task's number, and how many tries of it failed before."""

    number: int
    failed_before: int


TaskWork = Callable[[TaskTry], Iterator[pa.RecordBatch]]
"""What a task does, and the rows that it reports."""


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Work of which each task needs a share of its own: a runner brings it that one alone.

    Code of users may need what they added to their session; a runner must bring that too.
    """

    run: Callable[[TaskTry, Any], Iterator[pa.RecordBatch]]
    shares: Sequence[Any]
    calls_users: bool = True
    """Whether it may call code of users."""

    def __call__(self, this: TaskTry) -> Iterator[pa.RecordBatch]:
        """Where all shares are at hand."""
        return self.run(this, self.shares[this.number])


class TaskRunner(Protocol):
    """Runs tasks in parallel, on this or on other hosts."""

    def slots(self) -> int:
        """How many tasks run at the same time."""

    def slots_of_host(self) -> int:
        """How many of them run in one place, whose threads they share."""

    def run(
        self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
    ) -> pa.Table:
        """Run so many tasks to their end; returns all rows that they reported.

        `watch` is called meanwhile. If it raises, the tasks are cancelled and the error goes on.
        """

    def about(self) -> Mapping[str, Any]:
        """What the record of a run says about its runner: `versions` of libraries, and more."""


Watch = Callable[[], None]
"""Is called again and again while tasks run, and raises when they are to be cancelled."""


def never_stop() -> None:
    """Let tasks run to their end."""
