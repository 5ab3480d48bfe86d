"""Finds finished work by fingerprint, in any run of the workspace.

A task leaves an empty file under `fingerprints/{family}/{fingerprint}/` just before it makes its
index. The file only leads to the attempt; whether it can be used is read from the attempt itself.

Invariant: an attempt is handed out only if its index is valid, its whole provenance is equal, its
files are there in full length, and no clean-up has begun to remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from millrace.errors import DataLost, StorageError
from millrace.identity import fingerprint as fp
from millrace.ids import AttemptId
from millrace.shuffle import reader
from millrace.shuffle.index import MapTaskIndex
from millrace.storage import layout
from millrace.storage.local import vanished
from millrace.storage.store import Store

_NOTE_TRIES_MAX: Final = 100


def note(store: Store, attempt: AttemptId, made_from: Mapping[str, Any]) -> None:
    """Note an attempt that is about to be finished, under its fingerprint."""
    folder = layout.fingerprint_folder(fp.family(made_from), fp.fingerprint(made_from))
    for tries_left in reversed(range(_NOTE_TRIES_MAX)):
        try:
            store.make_folder(folder)
            store.create(f"{folder}/{layout.reference_name(attempt)}", b"")
        except StorageError as error:
            # A clean-up beside us removes folders that are empty just then.
            if not vanished(error) or not tries_left:
                raise
        else:
            return


def forget(store: Store, index: MapTaskIndex) -> None:
    """Remove the note of an attempt that is gone."""
    if index.fingerprint is None:
        return
    family = fp.family(index.made_from)
    folder = layout.fingerprint_folder(family, index.fingerprint)
    store.remove_file(f"{folder}/{layout.reference_name(index.id)}")
    if store.remove_folder_if_empty(folder):
        store.remove_folder_if_empty(layout.family_folder(family))


def sweep(store: Store) -> None:
    """Remove notes of attempts that are gone or were never finished."""
    for family in store.names(layout.FINGERPRINTS):
        family_folder = f"{layout.FINGERPRINTS}/{family}"
        for digest in store.names(family_folder):
            folder = f"{family_folder}/{digest}"
            for name in store.names(folder):
                attempt = layout.parse_reference(name)
                # An attempt's folder is made before its entry, so no run needs this one.
                if attempt is None or not store.exists(layout.attempt_folder(attempt)):
                    store.remove_file(f"{folder}/{name}")
            store.remove_folder_if_empty(folder)
        store.remove_folder_if_empty(family_folder)


def find(
    store: Store,
    made_from: Mapping[str, Any],
    *,
    has_content: Callable[[Mapping[str, str]], bool],
    verify: bool = False,
) -> MapTaskIndex | None:
    """A finished attempt of the same work, the youngest first; None if there is none.

    `has_content` tells whether input files that times cannot tell apart have these checksums.
    """
    folder = layout.fingerprint_folder(fp.family(made_from), fp.fingerprint(made_from))
    for index in _indexes(store, folder):
        if (
            fp.same(index.made_from, made_from)
            and is_whole(store, index, verify=verify)
            and has_content(index.recent)
        ):
            return index
    return None


def why_not(store: Store, made_from: Mapping[str, Any]) -> str:
    """The reason that no earlier work can be used, in words."""
    folder = layout.family_folder(fp.family(made_from))
    names = store.names(folder)
    indexes = [index for name in names for index in _indexes(store, f"{folder}/{name}")]
    if not indexes:
        return "not done before"
    newest = max(indexes, key=lambda index: index.created_at_ms)
    if fp.same(newest.made_from, made_from):
        return f"attempt {newest.id} is damaged or being removed, or its input has other bytes"
    return fp.changes(newest.made_from, made_from)


def is_whole(store: Store, index: MapTaskIndex, *, verify: bool = False) -> bool:
    """Whether all files are there in full length (and, to verify, with the right checksums)."""
    folder = layout.attempt_folder(index.id)
    if any(layout.is_removal_mark(name) for name in store.names(folder)):
        return False
    lengths: dict[str, int] = {}
    for meta in index.partitions:
        if meta.file is not None:
            lengths[meta.file] = max(lengths.get(meta.file, 0), meta.offset + meta.bytes)
    if store.sizes(folder, lengths) != lengths:
        return False
    try:
        if verify:
            for meta in index.partitions:
                reader.map_partition(store, index.id, meta)
    except DataLost:
        return False
    return True


def _indexes(store: Store, folder: str) -> Iterator[MapTaskIndex]:
    references = [layout.parse_reference(name) for name in store.names(folder)]
    for attempt in sorted((a for a in references if a is not None), reverse=True):
        index = reader.index_or_none(store, attempt)
        if index is not None:
            yield index
