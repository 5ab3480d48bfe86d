"""Checks the shuffles of a workspace: manifests, indexes, every byte of every map output.

Safe beside running and cleaning processes: what a removal took away meanwhile is no problem.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

import xxhash

from millrace.errors import Corrupt, MillraceError, PeerGone, UserError
from millrace.ids import Attempt, AttemptId, QueryId, StageId
from millrace.shuffle import manifest, reader, runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import decode_bin, decode_json
from millrace.shuffle.manifest import Choice, Manifest
from millrace.storage import layout
from millrace.storage.store import Store, storage_errors
from millrace.upkeep.backup_source import source_of
from millrace.upkeep.findings import Findings, kind_of

_READ_BYTES: Final = 1 << 20
_ROWS: Final = ".arrow"
OpenShuffle = Callable[[QueryId, StageId], Shuffle]


def verify_shuffles(store: Store, open_shuffle: OpenShuffle, found: Findings) -> None:
    """Check all runs. `open_shuffle` reaches map outputs in folders of other hosts too."""
    seen: set[tuple[AttemptId, str]] = set()
    for query_id, run in runs.scan(store):
        if isinstance(run, Corrupt):
            found.add("damaged", store.path(layout.query_path(query_id)), str(run))
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        for stage_id in runs.stages(store, query_id):
            _verify_stage(store, query_id, stage_id, open_shuffle, seen, found)
    chosen = {attempt for attempt, _ in seen}
    for attempt in _attempts(store):
        if attempt not in chosen:
            _verify_attempt(store, attempt, found)


def _verify_stage(
    store: Store,
    query_id: QueryId,
    stage_id: StageId,
    open_shuffle: OpenShuffle,
    seen: set[tuple[AttemptId, str]],
    found: Findings,
) -> None:
    path = layout.reusing_path(query_id, stage_id)
    if (data := store.read(path)) is not None:
        with found.checking(store.path(path)):
            manifest.decode_references(data, where=store.path(path))
    path = layout.manifest_path(query_id, stage_id)
    try:
        decided = runs.find_manifest(store, query_id, stage_id)
    except MillraceError as error:
        found.add(kind_of(error), store.path(path), str(error))
        return
    if decided is None:
        return
    problems = Findings(found.on_bytes)
    _verify_chosen(store, decided, open_shuffle, seen, problems)
    if problems.problems and not store.exists(path):
        problems.problems.clear()  # The run was removed meanwhile.
    found.take(problems)


def _verify_chosen(
    store: Store,
    decided: Manifest,
    open_shuffle: OpenShuffle,
    seen: set[tuple[AttemptId, str]],
    found: Findings,
) -> None:
    here = Shuffle(manifest=decided, stores={None: store})
    others: Shuffle | None = None
    for position, choice in enumerate(decided.chosen):
        if (choice.attempt, choice.content) in seen:
            continue
        seen.add((choice.attempt, choice.content))
        if choice.folder is None:
            _verify_output(store, here.of_outputs([position]), choice, found)
            continue
        if others is None:
            try:
                others = open_shuffle(decided.query_id, decided.stage_id)
            except MillraceError as error:
                found.note(f"map outputs in folders of other hosts: {_first_line(error)}")
                return
        _verify_remote(others.of_outputs([position]), choice, found)


def _verify_output(store: Store, output: Shuffle, choice: Choice, found: Findings) -> None:
    folder = layout.attempt_folder(choice.attempt)
    _verify_indexes(store, choice.attempt, found)
    result = output.verify()
    found.looked(result.bytes)
    for problem in result.problems:
        gone = not store.exists(folder) or " is gone" in problem or "no map output" in problem
        found.add("missing" if gone else "damaged", store.path(folder), problem)


def _verify_indexes(store: Store, attempt: AttemptId, found: Findings) -> None:
    """Either file of an index is enough to read; both are to be right."""
    for name, decode in ((layout.INDEX_BIN, decode_bin), (layout.INDEX_JSON, decode_json)):
        relative = f"{layout.attempt_folder(attempt)}/{name}"
        data = store.read(relative)
        if data is not None:
            with found.checking(store.path(relative)):
                decode(data, where=store.path(relative))
                found.looked(len(data))


def _verify_remote(output: Shuffle, choice: Choice, found: Findings) -> None:
    where = f"{layout.attempt_folder(choice.attempt)} in folder {choice.folder}"
    try:
        for index in output.indexes():
            output.check(choice, range(len(index.partitions)))
            found.looked(sum(meta.bytes for meta in index.partitions))
    except (PeerGone, UserError) as error:
        found.note(f"map outputs in folder {choice.folder} of another host: {_first_line(error)}")
    except MillraceError as error:
        found.add(kind_of(error), where, str(error))


def _attempts(store: Store) -> Iterator[AttemptId]:
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        for stage_id in runs.stages(store, query_id):
            for task in runs.map_tasks(store, query_id, stage_id):
                for number in store.numbers(layout.task_folder(task)):
                    yield AttemptId(task, Attempt(number))


def _verify_attempt(store: Store, attempt: AttemptId, found: Findings) -> None:
    """Finished work of a run that has not ended, or that no manifest chose: a later run may."""
    folder = layout.attempt_folder(attempt)
    problems = Findings(found.on_bytes)
    with problems.checking(store.path(folder)):
        _verify_indexes(store, attempt, problems)
        index = reader.find_index(store, attempt)
        for meta in index.partitions if index is not None else ():
            problems.looked(reader.map_partition(store, attempt, meta).size, files=0)
        problems.looked(0)
    if problems.problems and not store.exists(folder):
        problems.problems.clear()
    found.take(problems)


def verify_inputs(store: Store, found: Findings) -> None:
    """Check the rows of `from_arrow`: files are named by their bytes."""
    for name in sorted(store.names(layout.INPUTS)):
        if not name.endswith(_ROWS):
            continue
        path = store.path(f"{layout.INPUTS}/{name}")
        with found.checking(path):
            digest, size = _digest(store, f"{layout.INPUTS}/{name}")
            found.looked(size)
            if digest is not None and digest != name.removesuffix(_ROWS):
                raise Corrupt(
                    f"{path} does not hold the rows that it is named by\n"
                    f"  found: checksum {digest}\n"
                    "  to fix: restore it from a backup, or remove it and give the rows again"
                )


def _digest(store: Store, relative: str) -> tuple[str | None, int]:
    """The checksum and size of a file; None if it was removed meanwhile."""
    hashed, size = xxhash.xxh3_128(), 0
    with storage_errors(f"reading {store.path(relative)}"):
        try:
            file, _ = source_of(store).open(relative)
        except FileNotFoundError:
            return None, size
        with file:
            while chunk := file.read(_READ_BYTES):
                hashed.update(chunk)
                size += len(chunk)
    return hashed.hexdigest(), size


def _first_line(error: BaseException) -> str:
    return str(error).partition(os.linesep)[0]
