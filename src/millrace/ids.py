"""The names of things, one type each, and how numbers for them are chosen.

Invariant: an id is never a bare int in a signature, and no id has a value that means "none" or
"latest": that is what `Latest` is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

QueryId = NewType("QueryId", int)
StageId = NewType("StageId", int)
MapTask = NewType("MapTask", int)
Attempt = NewType("Attempt", int)
ReducePartition = NewType("ReducePartition", int)
Fingerprint = NewType("Fingerprint", str)
FolderId = NewType("FolderId", str)

FIRST_ATTEMPT: Final = Attempt(1)
ID_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Latest:
    """The highest attempt that has a valid index. On the wire it travels as attempt 0."""


LATEST: Final = Latest()


@dataclass(frozen=True, slots=True, order=True)
class MapTaskId:
    """One map task of one stage of one run."""

    query_id: QueryId
    stage_id: StageId
    map_task: MapTask


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One attempt of one map task: the unit that exists whole or not at all."""

    task: MapTaskId
    attempt: Attempt

    @classmethod
    def of(cls, query_id: int, stage_id: int, map_task: int, attempt: int) -> AttemptId:
        """Build from plain numbers, as read from a file or the wire."""
        task = MapTaskId(QueryId(query_id), StageId(stage_id), MapTask(map_task))
        return cls(task, Attempt(attempt))

    def __str__(self) -> str:
        task = self.task
        return f"{task.query_id}/{task.stage_id}/{task.map_task}/{self.attempt}"
