"""Which map outputs are known, by exact attempt, and in which folder each is.

Invariant: an attempt that was not registered is never answered with another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.errors import MapOutputMissing
from millrace.ids import Attempt, AttemptId, FolderId, Latest, MapTaskId
from millrace.shuffle.index import MapTaskIndex


@dataclass(frozen=True, slots=True)
class KnownOutput:
    """A known map output and its folder (None: the workspace's own folder)."""

    index: MapTaskIndex
    folder: FolderId | None


@dataclass(slots=True)
class KnownOutputs:
    """Map outputs under (query, stage, map task, attempt)."""

    tasks: dict[MapTaskId, dict[Attempt, KnownOutput]] = field(default_factory=dict)

    def register(self, index: MapTaskIndex, folder: FolderId | None = None) -> None:
        """Make a finished attempt known. Doing it again changes nothing."""
        self.tasks.setdefault(index.id.task, {})[index.id.attempt] = KnownOutput(index, folder)

    def forget(self, attempt: AttemptId) -> None:
        """Drop an attempt that was removed."""
        self.tasks.get(attempt.task, {}).pop(attempt.attempt, None)

    def attempts(self, task: MapTaskId) -> list[Attempt]:
        """Attempts registered for a map task, lowest first."""
        return sorted(self.tasks.get(task, ()))

    def find(self, task: MapTaskId, attempt: Attempt | Latest) -> KnownOutput:
        """The output of just this attempt, or of the highest one for `Latest`."""
        known = self.attempts(task)
        number = known[-1] if isinstance(attempt, Latest) and known else attempt
        if isinstance(number, Latest) or number not in known:
            have = ", ".join(map(str, known)) or "none"
            shown = "latest" if isinstance(attempt, Latest) else str(attempt)
            raise MapOutputMissing(
                "map output not registered for requested attempt\n"
                f"  asked for: query {task.query_id}, stage {task.stage_id}, "
                f"map task {task.map_task}, attempt {shown}\n"
                f"  registered attempts: {have}\n"
                f"  to fix: {f'ask for attempt {known[-1]}' if known else 'run the map task again'}"
            )
        return self.tasks[task][number]
