"""Removes from a host's own folder what its workspace no longer has.

The workspace knows which runs were dropped; a host does not. So a clean-up of the workspace tells
each agent what is left, and the agent removes the rest from its own folder.

Invariant: a run that began after the list was made is left alone: its number is higher. A run that
means to use an attempt again and finds it gone makes it again.
"""

from __future__ import annotations

from millrace.config import Config
from millrace.durations import ms
from millrace.ids import Attempt, AttemptId, QueryId
from millrace.shuffle import reader, reuse, runs
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_messages import KeptRuns, RemovedOutputs


def remove_dropped(
    store: LocalStore, kept: KeptRuns, *, now_ms: int, config: Config
) -> RemovedOutputs:
    """Remove map outputs of runs that are gone, and what tasks that died long ago have left."""
    store.empty_trash()
    stale_ms = now_ms - ms(config.unfinished_grace)
    attempts = freed = 0
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        is_dropped = query_id <= kept.newest and query_id not in kept.runs
        for attempt in _attempts(store, query_id):
            index = reader.index_or_none(store, attempt)
            is_gone = is_dropped and str(attempt) not in kept.attempts
            if not is_gone and (index is not None or not _is_stale(store, attempt, stale_ms)):
                continue
            size = _size(store, attempt)
            if store.discard(layout.attempt_folder(attempt)):
                attempts, freed = attempts + 1, freed + size
                if index is not None:
                    reuse.forget(store, index)
        if is_dropped:
            _remove_shell(store, query_id)
    _remove_spill(store, stale_ms)
    return RemovedOutputs(attempts=attempts, bytes=freed)


def _attempts(store: LocalStore, query_id: QueryId) -> list[AttemptId]:
    return [
        AttemptId(task, Attempt(number))
        for stage_id in runs.stages(store, query_id)
        for task in runs.map_tasks(store, query_id, stage_id)
        for number in store.numbers(layout.task_folder(task))
    ]


def _is_stale(store: LocalStore, attempt: AttemptId, stale_ms: int) -> bool:
    """Whether an unfinished attempt was left by a task that died long ago."""
    folder = layout.attempt_folder(attempt)
    is_newer = any(name in store.names(folder) for name in (layout.INDEX_BIN, layout.INDEX_JSON))
    changed = store.changed_at_ms(folder)
    return not is_newer and changed is not None and changed <= stale_ms


def _size(store: LocalStore, attempt: AttemptId) -> int:
    folder = layout.attempt_folder(attempt)
    return sum(store.sizes(folder, store.names(folder)).values())


def _remove_shell(store: LocalStore, query_id: QueryId) -> None:
    for stage_id in runs.stages(store, query_id):
        for task in runs.map_tasks(store, query_id, stage_id):
            store.remove_folder_if_empty(layout.task_folder(task))
        store.remove_folder_if_empty(layout.stage_folder(query_id, stage_id))
    store.remove_folder_if_empty(layout.query_folder(query_id))


def _remove_spill(store: LocalStore, stale_ms: int) -> None:
    for name in store.names(layout.SPILL):
        changed = store.changed_at_ms(f"{layout.SPILL}/{name}")
        if changed is not None and changed <= stale_ms:
            store.discard(f"{layout.SPILL}/{name}")
