"""All runs of a workspace in one file, so that a list of them does not read two files of each.

    catalog/runs.json

It is a copy that only saves reads: it is made again where it is missing, damaged or of another
version. Invariant: an entry is used only while the files that it was read from are the ones that it
was read from, by what the disk or bucket says of them; all others are read. Only finished runs are
kept, whose files never change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.errors import Corrupt, FormatError, MillraceError, UserError
from millrace.ids import QueryId, StageId
from millrace.names import existing, shown
from millrace.shuffle import runs
from millrace.shuffle.runs import Run
from millrace.storage import documents, layout
from millrace.storage.documents import Document
from millrace.storage.store import Store

FOLDER: Final = "catalog"
FILE: Final = f"{FOLDER}/runs.json"
VERSION: Final = 1
_NEW_SHARE: Final = 32
"""The file is written again when there is one new run for so many known ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSize:
    """What a finished run made, as its last manifest says."""

    partitions: int
    map_tasks: int
    reused: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run; without a size if it is not finished, or if its last manifest cannot be read."""

    run: Run
    size: RunSize | None = None
    problem: Corrupt | FormatError | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A finished run, and the prints of its record and of its last manifest."""

    listed: ListedRun
    prints: tuple[str, str]


def list_runs(store: Store) -> list[tuple[QueryId, ListedRun | Corrupt]]:
    """All runs but those of a newer Millrace, oldest first; a damaged one as the error it is."""
    numbers = [QueryId(number) for number in store.numbers(layout.SHUFFLE)]
    known = _load(store)
    entries = {number: known[number] for number in numbers if number in known}
    # Looked at before anything is read: what changes meanwhile does not match the next time.
    seen = _prints(store, [layout.query_path(number) for number in numbers], entries.values())
    found: dict[QueryId, ListedRun | Corrupt] = {
        number: entry.listed
        for number, entry in entries.items()
        if entry.prints == tuple(seen.get(path) for path in _paths(entry.listed.run))
    }
    others = [number for number in numbers if number not in found]
    fresh = _read_all(store, others, seen)
    found |= {number: each.listed if isinstance(each, _Entry) else each for number, each in fresh}
    made = {number: each for number, each in fresh if isinstance(each, _Entry)}
    gone = len(known) - (len(found) - len(fresh))
    if len(made) + gone > len(known) // _NEW_SHARE:
        kept = {n: e for n, e in entries.items() if n in found} | made
        _save(store, [kept[number] for number in sorted(kept)])
    return [(number, found[number]) for number in numbers if number in found]


def all_runs(store: Store) -> list[Run]:
    """All runs but those of a newer Millrace, oldest first; a damaged one is an error."""
    return [listed.run for _, listed in _undamaged(store)]


def find_named(store: Store, name: str) -> list[QueryId]:
    """Finished runs that were given this name, oldest first; the last one is what it means."""
    return [query_id for given, query_id in _named(store) if given == name]


def resolve(store: Store, run: int | str) -> QueryId:
    """The run that a number or a name means; an error that lists the known names."""
    if not isinstance(run, str):
        return QueryId(run)
    query_ids = find_named(store, run)
    if not query_ids:
        known = list(dict.fromkeys(name for name, _ in _named(store)))
        raise UserError(
            f"no finished shuffle {shown(run)} in {store.root}\n"
            f"  found: {existing(run, known, 'none that has a name')}\n"
            "  to fix: choose one of them, or a run's number as a number (millrace shuffle ls)"
        )
    return query_ids[-1]


def _named(store: Store) -> list[tuple[str, QueryId]]:
    """Names of finished runs, oldest first."""
    return [
        (str(listed.run.about[runs.NAME]), query_id)
        for query_id, listed in _undamaged(store)
        if listed.run.about.get(runs.NAME) is not None
        and (listed.size is not None or listed.problem is not None)
    ]


def _undamaged(store: Store) -> Iterator[tuple[QueryId, ListedRun]]:
    for query_id, listed in list_runs(store):
        if isinstance(listed, Corrupt):
            raise listed
        yield query_id, listed


def _read_all(
    store: Store, numbers: Sequence[QueryId], seen: Mapping[str, str]
) -> list[tuple[QueryId, _Entry | ListedRun | Corrupt]]:
    """Read runs that the catalogue does not have: several at a time from a bucket."""
    found = store.each(lambda number: runs.find_run(store, number), numbers)
    there = [run for run in found if isinstance(run, Run)]
    manifests = [_paths(run)[1] for run in there]
    prints = store.prints(manifests)
    listed = store.each(lambda run: _listed(store, run), there)
    read: dict[QueryId, _Entry | ListedRun] = {}
    for each, manifest in zip(listed, prints, strict=True):
        record = seen.get(layout.query_path(each.run.query_id))
        is_kept = each.size is not None and record is not None and manifest is not None
        read[each.run.query_id] = _Entry(each, (str(record), str(manifest))) if is_kept else each
    return [
        (number, run if isinstance(run, Corrupt) else read[number])
        for number, run in zip(numbers, found, strict=True)
        if run is not None
    ]


def _listed(store: Store, run: Run) -> ListedRun:
    try:
        manifest = runs.find_manifest(store, run.query_id, _last_stage(run))
    except (Corrupt, FormatError) as error:
        return ListedRun(run, problem=error)
    if manifest is None:
        return ListedRun(run)
    size = RunSize(
        partitions=manifest.partitions,
        map_tasks=len(manifest.chosen),
        reused=len(manifest.reused),
        rows=sum(manifest.partition_rows),
        bytes=sum(manifest.partition_bytes),
    )
    return ListedRun(run, size)


def _last_stage(run: Run) -> StageId:
    return StageId(run.about.get("stages", 1) - 1)


def _paths(run: Run) -> tuple[str, str]:
    """The files that an entry is made of."""
    manifest = layout.manifest_path(run.query_id, _last_stage(run))
    return layout.query_path(run.query_id), manifest


def _prints(store: Store, paths: list[str], entries: Iterable[_Entry]) -> dict[str, str]:
    paths += [_paths(entry.listed.run)[1] for entry in entries]
    found = zip(paths, store.prints(paths), strict=True)
    return {path: seen for path, seen in found if seen is not None}


# The file.
def _load(store: Store) -> dict[QueryId, _Entry]:
    """What the file has; nothing if it is missing or of no use."""
    data = store.read(FILE)
    if data is None:
        return {}
    try:
        entries = documents.load(
            data,
            lambda document: [_entry(row) for row in document.items("runs")],
            where=store.path(FILE),
            what="a catalogue of runs",
            to_fix="remove it; it is made again",
            version=VERSION,
            workspace=store.workspace_id(),
        )
    except (Corrupt, FormatError):
        return {}
    return {entry.listed.run.query_id: entry for entry in entries}


def _save(store: Store, entries: Sequence[_Entry]) -> None:
    """Write the file, where this user may; the next list does without it otherwise."""
    document = {
        "version": VERSION,
        documents.WORKSPACE: store.workspace_id(),
        "runs": [_row(entry) for entry in entries],
    }
    with contextlib.suppress(MillraceError):
        store.make_folder(FOLDER)
        store.replace(FILE, documents.seal(document))


def _row(entry: _Entry) -> list[Any]:
    run, size = entry.listed.run, entry.listed.size
    assert size is not None, "only finished runs are kept"
    numbers = [size.partitions, size.map_tasks, size.reused, size.rows, size.bytes]
    return [run.query_id, run.created_at_ms, run.plan, run.about, numbers, *entry.prints]


def _entry(row: Any) -> _Entry:  # noqa: ANN401 - what a file has
    query_id, created_at_ms, plan, about, numbers, *prints = row
    fields = {"query_id": query_id, "created_at_ms": created_at_ms, "plan": plan, "about": about}
    run = runs.from_document(Document(fields), query_id)
    partitions, map_tasks, reused, rows, size = map(int, numbers)
    first, second = map(str, prints)
    sizes = RunSize(
        partitions=partitions, map_tasks=map_tasks, reused=reused, rows=rows, bytes=size
    )
    return _Entry(ListedRun(run, sizes), (first, second))
