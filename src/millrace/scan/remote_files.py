"""Input files in a bucket or in HDFS, found and read where they are; see `storage.file_systems`."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.remote_paths import FileRanges, FileVersion, RemotePath
from millrace.storage.storage_options import StorageOptions

NO_OPTIONS = StorageOptions()
DRAFT: Final = ".millrace-"
"""Begins the name of a hidden folder with files of a result that is being written."""
PUBLISH_FILE: Final = "publish.json"
"""In such a folder: the result counts, and its files are getting their names."""


def find_remote(path: str, options: StorageOptions) -> list[str]:
    """The files behind a url: one, all below it, or those that a glob matches."""
    whole = remote_path(path, options)
    if not glob.has_magic(whole.key) and whole.key and whole.version() is not None:
        return [whole.url]
    parts = whole.key.split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder = whole.at("/".join(parts[:fixed]))
    pattern = "/".join(parts[fixed:])
    listed = folder.list()
    _check_whole(path, [name for name, _ in listed])
    return sorted(
        folder.below(name).url
        for name, size in listed
        if size and not any(map(_is_hidden, name.split("/"))) and _matches(name, pattern)
    )


def base_of(file: str, path: str) -> str:
    """The folder that a url or glob names, of a file behind it: folders below may be columns."""
    named = path.partition("?")[0].rstrip("/").split("/")
    parts = file.partition("?")[0].split("/")
    is_folder = len(parts) > len(named) and "**" not in named
    return "/".join(parts[: len(named)] if is_folder else parts[:-1])


def look_at(path: str, options: StorageOptions) -> FileVersion | None:
    """A file as it is now; None if there is none."""
    return remote_path(path, options).version()


def random_access(path: str, options: StorageOptions) -> str | pa.NativeFile:
    """What readers of Parquet take: a path, or an open file of which parts are fetched."""
    return _opened(path, options) if is_remote(path) else path


def ranges(path: str, options: StorageOptions) -> FileRanges:
    """An open file of a store, of which many threads may fetch parts."""
    return remote_path(path, options).open_ranges()


def mapped(path: str, options: StorageOptions) -> pa.NativeFile:
    """A file in memory, or an open one of a store."""
    return _opened(path, options) if is_remote(path) else pa.memory_map(path)


def text_stream(path: str, options: StorageOptions) -> str | pa.NativeFile:
    """What readers of text take; a remote file is unpacked on the way, as a local one is."""
    return text_input(path, options) if is_remote(path) else path


def text_input(path: str, options: StorageOptions) -> pa.NativeFile:
    """The bytes of a text file, unpacked."""
    if not is_remote(path):
        return pa.input_stream(path, compression="detect")
    return remote_path(path, options).open_stream(unpacked=True)


def raw_stream(path: str, options: StorageOptions) -> pa.NativeFile:
    """The bytes of a file as they are."""
    if not is_remote(path):
        return pa.OSFile(path)
    return remote_path(path, options).open_stream(unpacked=False)


def _opened(path: str, options: StorageOptions) -> pa.NativeFile:
    remote: RemotePath = remote_path(path, options)
    return remote.open_file()


def _check_whole(path: str, names: Iterable[str]) -> None:
    """Refuse to read a result of which only some files have their names."""
    for name in names:
        *_, folder, file = ["", *name.split("/")]
        if file == PUBLISH_FILE and folder.startswith(DRAFT):
            raise UserError(
                f"{path} is being written, or its writer was killed\n  found: {name}\n"
                "  to fix: wait for the write; if none runs, write to it once more, which finishes "
                "it first"
            )


def _matches(name: str, pattern: str) -> bool:
    """Whether a name is what a glob says, or lies below a folder that is."""
    if not pattern:
        return True
    wanted, parts = pattern.split("/"), name.split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(name, pattern.replace("**/", "*"))
    return len(parts) >= len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
