"""Finds finished work by fingerprint, in any run of the workspace.

A task leaves an empty file under `fingerprints/{family}/{fingerprint}/` just before it makes its
index. The file only leads to the attempt; whether it can be used is read from the attempt itself.
The file `newest` of a family names the attempt that was noted last. It is for the reason in words
alone, so that no reason costs a look at all that was ever made of the same input.

Invariant: an attempt is handed out only if its index is valid, its whole provenance is equal, its
files are there in full length, and no clean-up has begun to remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
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
_LISTED_TOGETHER: Final = 1000
NOT_DONE_BEFORE: Final = "not done before"


def note(store: Store, attempt: AttemptId, made_from: Mapping[str, Any]) -> None:
    """Note an attempt that is about to be finished, under its fingerprint."""
    family, name = fp.family(made_from), layout.reference_name(attempt)
    folder = layout.fingerprint_folder(family, fp.fingerprint(made_from))
    newest = layout.newest_path(family)
    for tries_left in reversed(range(_NOTE_TRIES_MAX)):
        try:
            store.make_folder(folder)
            store.create(f"{folder}/{name}", b"")
            store.replace(newest, name.encode())
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
        _remove_family(store, family)


def sweep(store: Store, there: Collection[AttemptId] = ()) -> None:
    """Remove notes of attempts that are gone or were never finished.

    Of the attempts in `there` it was just seen that they are there.
    """
    for family in store.names(layout.FINGERPRINTS):
        family_folder = layout.family_folder(family)
        digests = [name for name in store.names(family_folder) if name != layout.NEWEST]
        left = [_sweep_notes(store, f"{family_folder}/{name}", there) for name in digests]
        if not any(left):
            _remove_family(store, family)


def _sweep_notes(store: Store, folder: str, there: Collection[AttemptId]) -> bool:
    """The same of one fingerprint; whether any note is left."""
    is_any_left = False
    for name in store.names(folder):
        attempt = layout.parse_reference(name)
        # An attempt's folder is made before its entry, so no run needs a note without one.
        if attempt is not None and (
            attempt in there or store.exists(layout.attempt_folder(attempt))
        ):
            is_any_left = True
        else:
            store.remove_file(f"{folder}/{name}")
    return is_any_left or not store.remove_folder_if_empty(folder)


def _remove_family(store: Store, family: str) -> None:
    """Remove the folder of a family that has no notes any more.

    A note that comes beside us may lose its `newest`: then the next reason is less exact.
    """
    folder = layout.family_folder(family)
    if store.names(folder) == [layout.NEWEST]:
        store.remove_file(layout.newest_path(family))
    store.remove_folder_if_empty(folder)


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


def known_families(store: Store, tasks: int) -> frozenset[str] | None:
    """The families that any attempt was noted under; None if asking for each task costs less."""
    if not store.remote:
        return None  # A look at a folder is no request.
    names = store.names_if_few(layout.FINGERPRINTS, _LISTED_TOGETHER * tasks // 2)
    return None if names is None else frozenset(names)


def why_not(store: Store, made_from: Mapping[str, Any]) -> str:
    """The reason that no earlier work can be used, in words."""
    family = fp.family(made_from)
    newest = _newest(store, family)
    if newest is None:
        before = store.names(layout.family_folder(family))
        return "its last attempt is unfinished or gone" if before else NOT_DONE_BEFORE
    if fp.same(newest.made_from, made_from):
        return f"attempt {newest.id} is damaged or being removed, or its input has other bytes"
    return fp.changes(newest.made_from, made_from)


def _newest(store: Store, family: str) -> MapTaskIndex | None:
    """The index of the attempt that was noted last for a family; None if it is gone."""
    name = store.read(layout.newest_path(family))
    attempt = None if name is None else layout.parse_reference(name.decode("ascii", "replace"))
    return None if attempt is None else reader.index_or_none(store, attempt)


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
