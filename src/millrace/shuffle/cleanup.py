"""Removes what is not needed: attempts past their time, leftovers of dead tasks, whole old runs.

Removal and reuse meet without a lock. Cleanup marks an attempt, then looks once more for runs that
rely on it; a run that means to reuse an attempt records that first, then looks for marks. The
second of the two sees the first. Each clean-up has its own mark: none takes back another's.

Invariant: the latest attempt of a map task, and any attempt that a manifest or a running stage
points to, is not removed. Doing it twice removes nothing more.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import Corrupt, FormatError, StorageError, UserError
from millrace.faults import fault
from millrace.ids import Attempt, AttemptId, MapTask, MapTaskId, QueryId, StageId
from millrace.shuffle import arrow_inputs, attempts, merged_outputs, reader, reuse, runs
from millrace.storage import layout
from millrace.storage.local import is_draft, vanished
from millrace.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """The attempts, runs and files that a clean-up removed.

    Example:
        >>> removed = ws.cleanup(ttl="7d")
        >>> removed.expired, removed.bytes
        ((), 0)
    """

    expired: tuple[AttemptId, ...] = ()
    abandoned: tuple[AttemptId, ...] = ()
    runs: tuple[QueryId, ...] = ()
    inputs: tuple[str, ...] = ()
    bytes: int = 0
    on_hosts: int = 0
    """Attempts that agents removed from their hosts' own folders."""

    @property
    def attempts(self) -> int:
        """How many attempts were removed, for all reasons."""
        return len(self.expired) + len(self.abandoned)


def remove_expired(store: Store, *, ttl_ms: int, now_ms: int, config: Config) -> CleanupReport:
    """Remove attempts and kept inputs older than the TTL, and what dead tasks left.

    Each folder is listed once, and manifests are read only if there is an attempt to remove.
    """
    store.empty_trash()
    stale_ms = now_ms - ms(config.unfinished_grace)
    if store.remote:
        store.remove_drafts(layout.SHUFFLE, changed_before_ms=stale_ms)  # Of all below it.
    found = _candidates(store, ttl_ms=ttl_ms, now_ms=now_ms, config=config, sweeps=True)
    there, old = found.there, found.old
    for attempt in there:
        _remove_stale_marks(store, layout.attempt_folder(attempt), stale_ms)
    relied = runs.relied_on(store) if old else set()
    expired, freed = _remove_marked(store, [a for a in old if a not in relied], apart_from=())
    abandoned = _remove_unfinished(store, found.left)
    reuse.sweep(store, there - {*expired, *abandoned})
    _remove_spilled(store, stale_ms)
    _sweep_merged(store, stale_ms)
    _remove_old(store, layout.TABLE_WRITES, store.names(layout.TABLE_WRITES), now_ms - ttl_ms)
    unused, more = arrow_inputs.remove_unused(store, ttl_ms=ttl_ms, now_ms=now_ms, config=config)
    return CleanupReport(expired=expired, abandoned=abandoned, inputs=unused, bytes=freed + more)


def expiring(store: Store, *, ttl_ms: int, now_ms: int, config: Config) -> CleanupReport:
    """The attempts that `remove_expired` would remove now; nothing is changed."""
    found = _candidates(store, ttl_ms=ttl_ms, now_ms=now_ms, config=config, sweeps=False)
    relied = runs.relied_on(store) if found.old else set()
    expired = [attempt for attempt in found.old if attempt not in relied]
    indexes = store.each(lambda attempt: reader.index_or_none(store, attempt), expired)
    return CleanupReport(
        expired=tuple(expired),
        abandoned=tuple(found.left),
        bytes=sum(index.bytes for index in indexes if index is not None),
    )


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Attempts that are there, and those of them that may go."""

    there: set[AttemptId]
    old: list[AttemptId]
    left: list[AttemptId]
    """Of tasks that died."""


def _candidates(
    store: Store, *, ttl_ms: int, now_ms: int, config: Config, sweeps: bool
) -> _Candidates:
    """Look through all runs; with `sweeps`, drafts of dead processes are removed on the way."""
    stale_ms = now_ms - ms(config.unfinished_grace)

    def numbers(folder: str) -> list[int]:
        return _swept(store, folder, stale_ms) if sweeps else store.numbers(folder)

    there: set[AttemptId] = set()
    old: list[AttemptId] = []
    left: list[AttemptId] = []
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        alive = runs.is_alive(store, query_id, now_ms=now_ms, config=config)
        for stage in numbers(layout.query_folder(query_id)):
            stage_id = StageId(stage)
            # A running stage has yet to say which of its attempts it relies on.
            undecided = alive and runs.find_manifest(store, query_id, stage_id) is None
            for number in numbers(layout.stage_folder(query_id, stage_id)):
                task = MapTaskId(query_id, stage_id, MapTask(number))
                listed = reader.list_attempts(store, task, run_is_alive=alive)
                there.update(attempt.id for attempt in listed)
                left += attempts.abandoned(
                    listed, now_ms=now_ms, grace_ms=ms(config.unfinished_grace)
                )
                if not undecided:
                    old += attempts.expired(listed, relied_on=(), now_ms=now_ms, ttl_ms=ttl_ms)
    return _Candidates(there, old, left)


def sweep_stage(store: Store, query_id: QueryId, stage_id: StageId) -> tuple[AttemptId, ...]:
    """After a stage was decided, remove its attempts that never got an index.

    A task that still writes one is not needed; it fails and changes nothing.
    """
    files: dict[tuple[str, str], set[str]] = {}
    for path in store.below(layout.stage_folder(query_id, stage_id)):
        task, _, rest = path.partition("/")
        attempt, _, name = rest.partition("/")
        if attempt:
            files.setdefault((task, attempt), set()).add(name)
    unfinished = {
        number
        for (task, _), names in files.items()
        if not names & {layout.INDEX_BIN, layout.INDEX_JSON}
        and (number := layout.number(task)) is not None
    }
    tasks = [MapTaskId(query_id, stage_id, MapTask(number)) for number in sorted(unfinished)]
    left = [
        attempt.id
        for listed in store.each(lambda task: reader.list_attempts(store, task), tasks)
        for attempt in listed
        if isinstance(attempt, attempts.Unfinished)
    ]
    return _remove_unfinished(store, left)


def drop_runs(store: Store, *, older_than_ms: int, now_ms: int, config: Config) -> CleanupReport:
    """Remove whole runs that began longer ago than that and have ended.

    Attempts that other runs rely on stay until those runs go.
    """
    store.empty_trash()
    doomed = old_runs(store, older_than_ms=older_than_ms, now_ms=now_ms, config=config)
    had = [query_id for query_id in doomed if store.exists(layout.query_path(query_id))]
    everything = [a for query_id in doomed for a in _all_attempts(store, query_id)]
    removed, freed = _remove_marked(store, everything, apart_from=doomed, first=doomed)
    for query_id in doomed:
        _remove_shell(store, query_id, now_ms)
    reuse.sweep(store)
    _sweep_merged(store, now_ms - ms(config.unfinished_grace))
    return CleanupReport(expired=removed, runs=tuple(had), bytes=freed)


def _sweep_merged(store: Store, stale_ms: int) -> None:
    """Remove merged objects of runs that are gone, or that were never decided."""
    if store.names(layout.MERGED):
        merged_outputs.sweep(store, runs.merged_names(store), changed_before_ms=stale_ms)


def old_runs(store: Store, *, older_than_ms: int, now_ms: int, config: Config) -> list[QueryId]:
    """The runs that `drop_runs` would remove."""
    return [
        query_id
        for query_id in map(QueryId, store.numbers(layout.SHUFFLE))
        if _age_ms(store, query_id, now_ms) >= older_than_ms
        and not runs.is_alive(store, query_id, now_ms=now_ms, config=config)
        and not _is_beginning(store, query_id, now_ms=now_ms, config=config)
    ]


def _remove_marked(
    store: Store,
    candidates: Sequence[AttemptId],
    *,
    apart_from: Collection[QueryId],
    first: Sequence[QueryId] = (),
) -> tuple[tuple[AttemptId, ...], int]:
    """Mark, look again, remove. `first` are runs whose own claims go before their attempts do."""
    cleaner = secrets.token_hex(8)
    marked = [attempt for attempt in candidates if _mark(store, attempt, cleaner)]
    fault("shuffle.cleanup.after_mark")
    # Where nothing is marked, nothing can be relied on: no need to read all manifests again.
    relied = runs.relied_on(store, apart_from=apart_from) if marked else set()
    for query_id in first:
        _remove_claims(store, query_id)
    fault("shuffle.cleanup.after_claims")
    removed: list[AttemptId] = []
    freed = 0
    for attempt in marked:
        if attempt in relied:
            _unmark(store, attempt, cleaner)
            continue
        index = reader.index_or_none(store, attempt)
        if store.discard(layout.attempt_folder(attempt)):
            removed.append(attempt)
            if index is not None:
                freed += index.bytes
                reuse.forget(store, index)
    return tuple(removed), freed


def _remove_unfinished(store: Store, candidates: Sequence[AttemptId]) -> tuple[AttemptId, ...]:
    """Mark, look again whether it is still unfinished, remove."""
    cleaner = secrets.token_hex(8)
    removed = []
    for attempt in candidates:
        if not _mark(store, attempt, cleaner):
            continue
        if reader.index_or_none(store, attempt) is not None:
            _unmark(store, attempt, cleaner)
        elif store.discard(layout.attempt_folder(attempt)):
            removed.append(attempt)
    return tuple(removed)


def _mark(store: Store, attempt: AttemptId, cleaner: str) -> bool:
    """Mark an attempt as about to be removed; False if it is gone already."""
    try:
        return store.create(layout.removal_mark(attempt, cleaner), b"")
    except StorageError as error:
        if vanished(error):
            return False
        raise


def _unmark(store: Store, attempt: AttemptId, cleaner: str) -> None:
    """Remove the mark of this clean-up."""
    store.remove_file(layout.removal_mark(attempt, cleaner))


def _swept(store: Store, folder: str, stale_ms: int) -> list[int]:
    """The numbers in a folder; drafts of dead processes are removed from it."""
    names = store.names(folder)
    if any(map(is_draft, names)):
        store.remove_drafts(folder, changed_before_ms=stale_ms)
    return sorted(number for number in map(layout.number, names) if number is not None)


def _remove_spilled(store: Store, stale_ms: int) -> None:
    """Remove spilled rows of dead processes."""
    for name in store.names(layout.SPILL):
        changed = store.changed_at_ms(f"{layout.SPILL}/{name}")
        if changed is not None and changed <= stale_ms:
            store.discard(f"{layout.SPILL}/{name}")


def _remove_stale_marks(store: Store, folder: str, stale_ms: int) -> None:
    _remove_old(store, folder, filter(layout.is_removal_mark, store.names(folder)), stale_ms)


def _remove_old(store: Store, folder: str, names: Iterable[str], before_ms: int) -> None:
    """Remove files of a folder that did not change since then."""
    for name in names:
        changed = store.changed_at_ms(f"{folder}/{name}")
        if changed is not None and changed <= before_ms:
            store.remove_file(f"{folder}/{name}")


def _remove_claims(store: Store, query_id: QueryId) -> None:
    store.remove_file(layout.query_path(query_id))
    for stage_id in runs.stages(store, query_id):
        store.remove_file(layout.manifest_path(query_id, stage_id))
        store.remove_file(layout.reusing_path(query_id, stage_id))


def _remove_shell(store: Store, query_id: QueryId, now_ms: int) -> None:
    """Remove a run's empty folders; the newest keeps its own, so that its number is not reused."""
    for stage_id in runs.stages(store, query_id):
        for task in runs.map_tasks(store, query_id, stage_id):
            store.remove_folder_if_empty(layout.task_folder(task))
        folder = layout.stage_folder(query_id, stage_id)
        store.remove_file(layout.entries_path(query_id, stage_id))
        store.remove_drafts(folder, changed_before_ms=now_ms)
        store.remove_folder_if_empty(folder)
    store.remove_file(layout.alive_path(query_id))
    store.remove_drafts(layout.query_folder(query_id), changed_before_ms=now_ms)
    if query_id != store.numbers(layout.SHUFFLE)[-1]:
        store.remove_folder_if_empty(layout.query_folder(query_id))


def _all_attempts(store: Store, query_id: QueryId) -> list[AttemptId]:
    return [
        attempt
        for stage_id in runs.stages(store, query_id)
        for attempt in _attempts(store, query_id, stage_id)
    ]


def _attempts(store: Store, query_id: QueryId, stage_id: StageId) -> list[AttemptId]:
    return [
        AttemptId(task, Attempt(number))
        for task in runs.map_tasks(store, query_id, stage_id)
        for number in store.numbers(layout.task_folder(task))
    ]


def is_kept(store: Store, query_id: QueryId, *, now_ms: int, config: Config) -> bool:
    """Whether a run is there, or just begins: the newest keeps its folder when it is dropped."""
    is_there = store.exists(layout.query_path(query_id))
    return is_there or _is_beginning(store, query_id, now_ms=now_ms, config=config)


def _is_beginning(store: Store, query_id: QueryId, *, now_ms: int, config: Config) -> bool:
    """Whether a run claimed the number just now and has not yet written its record."""
    folder = layout.query_folder(query_id)
    changed = store.changed_at_ms(folder)
    young = changed is not None and now_ms - changed < ms(config.run_dead_after)
    return young and not store.names(folder)


def _age_ms(store: Store, query_id: QueryId, now_ms: int) -> int:
    try:
        created_at_ms = runs.read_run(store, query_id).created_at_ms
        # A run that was interrupted may be resumed: it is as old as its last sign of life.
        return now_ms - max(created_at_ms, store.changed_at_ms(layout.alive_path(query_id)) or 0)
    except (Corrupt, FormatError, UserError):
        changed = store.changed_at_ms(layout.query_folder(query_id))
        return 0 if changed is None else now_ms - changed
