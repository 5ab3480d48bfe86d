"""The runs of a workspace: their numbers, records, signs of life, and the attempts they rely on.

Invariant: a run's number is claimed by making its folder, so two runs never share one, and the
newest run's folder is never removed, so a number is never given out twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import (
    Corrupt,
    FormatError,
    MillraceError,
    PeerGone,
    S3Unreachable,
    StorageError,
    UserError,
)
from millrace.ids import AttemptId, MapTask, MapTaskId, QueryId, StageId
from millrace.shuffle import manifest
from millrace.shuffle.manifest import Manifest
from millrace.storage import documents, layout
from millrace.storage.documents import Document
from millrace.storage.store import Store
from millrace.wakeup import WakeUp, WorkerThread, still_running

NAME: Final = "name"
"""What `about` calls the name that a user gave to a shuffle."""
_VERSION: Final = 1
_CLAIM_TRIES_MAX: Final = 1000
_BEATS_PER_LIMIT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The content of `query.json`.

    Example:
        >>> run = ws.runs()[0]
        >>> run.query_id
        1
    """

    query_id: QueryId
    created_at_ms: int
    plan: str
    about: Mapping[str, Any]


def begin_run(store: Store, *, plan: str, about: Mapping[str, Any], now_ms: int) -> Run:
    """Claim the next number and say what the run is."""
    for _ in range(_CLAIM_TRIES_MAX):
        numbers = store.numbers(layout.SHUFFLE)
        query_id = QueryId(numbers[-1] + 1 if numbers else 1)
        if store.claim(layout.query_folder(query_id)):
            if store.numbers(layout.SHUFFLE)[-1] != query_id:
                # Somebody is further already, so this number may have been a run's that is gone.
                store.remove_folder_if_empty(layout.query_folder(query_id))
                continue
            run = Run(query_id=query_id, created_at_ms=now_ms, plan=plan, about=about)
            store.touch(layout.alive_path(query_id))
            store.create(layout.query_path(query_id), _encode(run, store.workspace_id()))
            return run
    raise StorageError(
        f"no run number could be claimed in {_CLAIM_TRIES_MAX} tries\n"
        "  to fix: run again, with fewer processes that start runs at the same moment"
    )


def read_run(store: Store, query_id: QueryId) -> Run:
    """The run of this number; an error that names the known ones if there is none."""
    data = store.read(layout.query_path(query_id))
    if data is None:
        known = store.numbers(layout.SHUFFLE)
        raise UserError(
            f"no run {query_id} in {store.root}\n"
            f"  found: {', '.join(map(str, known[-10:])) or 'no runs'}\n"
            "  to fix: choose one of them (millrace shuffle ls)"
        )
    return _decode(store, query_id, data)


def scan(store: Store) -> Iterator[tuple[QueryId, Run | Corrupt]]:
    """All runs but those of a newer Millrace, oldest first; a damaged one as the error it is."""
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        run = find_run(store, query_id)
        if run is not None:
            yield query_id, run


def find_run(store: Store, query_id: QueryId) -> Run | Corrupt | None:
    """A run, or the error that it is damaged; None if it is gone, or a newer Millrace's."""
    data = store.read(layout.query_path(query_id))
    try:
        return None if data is None else _decode(store, query_id, data)
    except Corrupt as error:
        return error
    except FormatError:
        return None


def stages(store: Store, query_id: QueryId) -> list[StageId]:
    """Stages of a run that have a folder, lowest first."""
    return [StageId(n) for n in store.numbers(layout.query_folder(query_id))]


def map_tasks(store: Store, query_id: QueryId, stage_id: StageId) -> list[MapTaskId]:
    """Map tasks of a stage that have a folder, lowest first."""
    numbers = store.numbers(layout.stage_folder(query_id, stage_id))
    return [MapTaskId(query_id, stage_id, MapTask(n)) for n in numbers]


def find_manifest(store: Store, query_id: QueryId, stage_id: StageId) -> Manifest | None:
    """The manifest of a stage; None while there is none."""
    path = layout.manifest_path(query_id, stage_id)
    data = store.read(path)
    if data is None:
        return None
    where = store.path(path)
    decoded = manifest.decode(data, where=where, workspace=store.workspace_id())
    if (decoded.query_id, decoded.stage_id) != (query_id, stage_id):
        raise documents.damaged(
            where,
            "a manifest",
            f"it is of run {decoded.query_id}, stage {decoded.stage_id}",
            "put the file back where it was written",
        )
    return decoded


def read_manifest(store: Store, query_id: QueryId, stage_id: StageId) -> Manifest:
    """The manifest of a stage; an error if the run never got that far."""
    read_run(store, query_id)
    decoded = find_manifest(store, query_id, stage_id)
    if decoded is None:
        there = ", ".join(
            str(stage)
            for stage in stages(store, query_id)
            if store.exists(layout.manifest_path(query_id, stage))
        )
        raise UserError(
            f"run {query_id} has no finished stage {stage_id}\n"
            + (
                f"  found: the finished stages {there}\n  to fix: give one of these"
                if there
                else "  found: no manifest, so the run is still going or died\n"
                "  to fix: run the same shuffle again; its finished map tasks are reused"
            )
        )
    return decoded


def write_manifest(store: Store, decided: Manifest, *, sync: bool) -> None:
    """Record the choices, once."""
    path = layout.manifest_path(decided.query_id, decided.stage_id)
    store.make_folder(layout.stage_folder(decided.query_id, decided.stage_id))
    data = manifest.encode(decided, workspace=store.workspace_id())
    if not store.create(path, data, sync=sync):
        raise UserError(
            f"{store.path(path)} exists already\n  found: another process decided this stage\n"
            "  to fix: run again"
        )


def rely_on(
    store: Store, query_id: QueryId, stage_id: StageId, attempts: Collection[AttemptId]
) -> None:
    """Keep older attempts from being removed while a running stage means to use them."""
    store.make_folder(layout.stage_folder(query_id, stage_id))
    data = manifest.encode_references(sorted(attempts))
    store.replace(layout.reusing_path(query_id, stage_id), data)


def relied_on(store: Store, *, apart_from: Collection[QueryId] = ()) -> set[AttemptId]:
    """Every attempt that a manifest or a running stage points to."""
    attempts: set[AttemptId] = set()
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        if query_id in apart_from:
            continue
        for stage_id in stages(store, query_id):
            decided = find_manifest(store, query_id, stage_id)
            if decided is not None:
                attempts.update(choice.attempt for choice in decided.chosen)
            path = layout.reusing_path(query_id, stage_id)
            data = store.read(path)
            if data is not None:
                attempts.update(manifest.decode_references(data, where=store.path(path)))
    return attempts


def merged_names(store: Store) -> set[str]:
    """The merged objects that manifests name."""
    names: set[str] = set()
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        for stage_id in stages(store, query_id):
            decided = find_manifest(store, query_id, stage_id)
            if decided is not None and decided.entries is not None:
                names.update(layout.merged_name(each.digest) for each in decided.entries.merged)
    return names


def is_alive(store: Store, query_id: QueryId, *, now_ms: int, config: Config) -> bool:
    """Whether the run gave a sign of life lately."""
    changed = store.changed_at_ms(layout.alive_path(query_id))
    return changed is not None and now_ms - changed < ms(config.run_dead_after)


class Heart:
    """Whether the store still takes a sign of life. A store that is away ends the run."""

    def __init__(self, config: Config) -> None:
        self._limit_s = ms(config.gone_after) / 1000
        self._away: tuple[float, PeerGone] | None = None

    def check(self) -> None:
        """Raise if the store was away for as long as is waited for it."""
        away = self._away
        if away is not None and time.monotonic() - away[0] >= self._limit_s:
            raise away[1]

    def beat(self, touch: Callable[[], None]) -> None:
        """Give a sign of life."""
        began = time.monotonic()
        try:
            touch()
        except PeerGone as error:
            self._away = (self._away or (began, error))[0], error
        except MillraceError:
            pass  # If the run's folder or the disk is gone, the run itself will say so.
        else:
            self._away = None


@contextmanager
def heartbeat(store: Store, query_id: QueryId, config: Config) -> Iterator[Heart]:
    """Give signs of life from a thread while the body runs; then note that the run has ended."""
    try:
        with beating(store, query_id, config) as heart:
            yield heart
    except S3Unreachable:
        raise  # The storage that would record the run's end does not answer.
    except BaseException:
        end_run(store, query_id)
        raise
    end_run(store, query_id)


def end_run(store: Store, query_id: QueryId) -> None:
    """Note that a run has ended, with success or not."""
    store.remove_file(layout.alive_path(query_id))


@contextmanager
def beating(store: Store, query_id: QueryId, config: Config) -> Iterator[Heart]:
    """Give signs of life from a thread while the body runs, which is a part of the run."""
    done, heart = WakeUp(), Heart(config)
    pause_s = min(config.heartbeat_ms, ms(config.gone_after) / _BEATS_PER_LIMIT) / 1000

    def beat() -> None:
        while done.sleep(pause_s):
            heart.beat(lambda: store.touch(layout.alive_path(query_id)))

    thread = WorkerThread(beat, f"millrace-heartbeat-{query_id}")
    thread.start()
    try:
        yield heart
    finally:
        done.stop()
        # A store that hangs must not hide what ended the run: the thread ends with the process.
        still_running([thread], ms(config.gone_after))


def _encode(run: Run, workspace: str | None) -> bytes:
    document = {
        "version": _VERSION,
        documents.WORKSPACE: workspace,
        "query_id": run.query_id,
        "created_at_ms": run.created_at_ms,
        "plan": run.plan,
        "about": run.about,
    }
    return documents.seal(document, indent=1)


def _decode(store: Store, query_id: QueryId, data: bytes) -> Run:
    return documents.load(
        data,
        lambda document: from_document(document, query_id),
        where=store.path(layout.query_path(query_id)),
        what="a run",
        to_fix="restore the file, or remove the folder of this run",
        version=_VERSION,
        workspace=store.workspace_id(),
    )


def from_document(document: Document, query_id: QueryId) -> Run:
    """A run from what was recorded; a `ValueError` or `TypeError` if that cannot be."""
    run = Run(
        query_id=QueryId(document.whole("query_id")),
        created_at_ms=document.whole("created_at_ms"),
        plan=document.text("plan"),
        about=document.table("about"),
    )
    if run.query_id != query_id:
        raise ValueError(f"it is of run {run.query_id}")
    # The rest of it is for people.
    about = Document(run.about)
    about.text_or_none(NAME)
    for name in ("stages", "map_tasks"):
        if run.about.get(name) is not None:
            about.whole(name)
    return run
