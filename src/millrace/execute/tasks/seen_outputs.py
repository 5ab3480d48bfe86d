"""Finds outputs of a stage's map tasks as they appear, while the tasks run.

An output is there with its index, so a reader that sees the index may read the rows. Only outputs
in the workspace's own folder are seen: of other hosts the driver hears when their Spark task ends.

Invariant: of each map task one output is given out, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from millrace.ids import Attempt, AttemptId, MapTask, MapTaskId, QueryId, StageId
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.reader import index_or_none
from millrace.storage import layout
from millrace.storage.store import Store

_LOOK_S: Final = 0.1
_REMOTE_LOOK_S: Final = 2.0
"""In a bucket, where every look is paid for."""
_LOOK_SHARE: Final = 10
"""A look that takes long is followed by so many times as much without one."""


class SeenOutputs:
    """The outputs of some map tasks of a stage that appeared so far."""

    def __init__(
        self, store: Store, query_id: QueryId, stage_id: StageId, tasks: Iterable[MapTask]
    ) -> None:
        self._store, self._query_id, self._stage_id = store, query_id, stage_id
        self._missing = set(tasks)
        self._pause_s = _REMOTE_LOOK_S if store.remote else _LOOK_S
        self._look_at = time.monotonic() + self._pause_s
        self.begun: set[MapTask] = set()
        """Map tasks that somebody has begun, finished or not."""

    def look(self) -> list[MapTaskIndex]:
        """Outputs that appeared since the last look; nothing if that was just now."""
        began = time.monotonic()
        if not self._missing or began < self._look_at:
            return []
        folder = layout.stage_folder(self._query_id, self._stage_id)
        numbers = {MapTask(number) for number in self._store.numbers(folder)}
        self.begun |= numbers
        indexes = [index for n in sorted(numbers & self._missing) if (index := self._find(n))]
        self._missing -= {index.id.task.map_task for index in indexes}
        ended = time.monotonic()
        self._look_at = ended + max(self._pause_s, _LOOK_SHARE * (ended - began))
        return indexes

    def _find(self, number: MapTask) -> MapTaskIndex | None:
        task = MapTaskId(self._query_id, self._stage_id, number)
        for attempt in self._store.numbers(layout.task_folder(task)):
            index = index_or_none(self._store, AttemptId(task, Attempt(attempt)))
            if index is not None:
                return index
        return None
