"""Finds input files and says exactly which version of each it found.

Invariant: two versions of a file that differ never get the same identity. In a bucket the store's
own name of a version tells them apart. On a disk size and the times of change do (nanoseconds, of
content and of inode); a file that changed so recently that another change could carry the same
times has a checksum of its bytes in its identity too.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import xxhash

from millrace.config import MIB
from millrace.errors import UserError
from millrace.names import path_text
from millrace.scan import remote_files
from millrace.scan.remote_files import NO_OPTIONS
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import StorageOptions
from millrace.text import did_you_mean

FORMATS: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4")
_READ_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One version of one file.

    `content` is a checksum of its bytes, for a file that changed just before it was listed or where
    the user compares files by their bytes alone (`by_content`).
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    content: str | None = None
    by_content: bool = False
    tag: str | None = None
    """The name that a bucket gives this version: an ETag, a generation or a version id."""
    options: StorageOptions = field(default=NO_OPTIONS, repr=False, compare=False)
    """How it is reached, if the environment does not say; no part of what it is."""

    def identity(self) -> dict[str, Any]:
        """The identity of this version of the file."""
        if self.by_content:
            return {"path": self.path, "size": self.size, "content": self.content}
        if self.tag is not None:
            return {"path": self.path, "size": self.size, "tag": self.tag}
        return {
            "path": self.path,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "ctime_ns": self.ctime_ns,
        }

    def is_still_there(self) -> bool:
        """Whether the file is unchanged as far as size and times tell."""
        now = describe(self.path, self.options)
        listed = (self.size, self.mtime_ns, self.ctime_ns, self.tag)
        return (now.size, now.mtime_ns, now.ctime_ns, now.tag) == listed


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Files, each once, sorted, and the folders that the user named, below which they are."""

    files: list[str]
    bases: frozenset[str]


def find_files(paths: Paths, options: StorageOptions = NO_OPTIONS) -> FoundFiles:
    """Files behind paths, folders and globs; `_` or `.` first hides a name, as in Spark."""
    given: Iterable[object] = [paths]
    if not isinstance(paths, str) and isinstance(paths, Iterable):
        given = list(paths)
    if not given:
        raise UserError("no input paths were given\n  to fix: name at least one file or folder")
    files: set[str] = set()
    bases: set[str] = set()
    for path in given:
        text = path_text(path, "reading files")
        if is_remote(text):
            objects = _objects(text, options)
            files.update(objects)
            bases.update(remote_files.base_of(file, text) for file in objects)
            continue
        for match in _expand(text):
            files.update(_walk(match))
            bases.add(match if os.path.isdir(match) else os.path.dirname(match))
    return FoundFiles(sorted(files), frozenset(bases))


def describe(path: str, options: StorageOptions = NO_OPTIONS) -> InputFile:
    """The version of a file that is there now."""
    if is_remote(path):
        version = remote_files.look_at(path, options)
        if version is None:
            raise _unreadable(path, FileNotFoundError("there is no such object"))
        return InputFile(
            path=path,
            size=version.size,
            mtime_ns=version.changed_ns,
            ctime_ns=version.changed_ns,
            tag=version.tag,
            options=options,
        )
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return InputFile(
        path=path, size=status.st_size, mtime_ns=status.st_mtime_ns, ctime_ns=status.st_ctime_ns
    )


def identify(
    path: str,
    *,
    now_ms: int,
    recent_ms: int,
    by_content: bool,
    options: StorageOptions = NO_OPTIONS,
) -> InputFile:
    """The version of a file that is there now, with a checksum where times cannot tell."""
    file = describe(path, options)
    if file.tag is not None and not by_content:
        return file
    changed_ms = max(file.mtime_ns, file.ctime_ns) // 1_000_000
    if not by_content and now_ms - changed_ms > recent_ms:
        return file
    return replace(file, content=content_checksum(path, options), by_content=by_content)


def content_checksum(path: str, options: StorageOptions = NO_OPTIONS) -> str:
    """XXH3-128 of a file's bytes."""
    digest = xxhash.xxh3_128()
    try:
        with remote_files.raw_stream(path, options) as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise _unreadable(path, error) from error
    return str(digest.hexdigest())


def format_of(paths: Sequence[str], given: str | None) -> str:
    """The one format of all files, as given or by their names' endings."""
    known = sorted(set(FORMATS.values()))
    if given is not None:
        if given not in known:
            raise UserError(
                f"unknown format {given!r}\n  found: known are {', '.join(known)}\n"
                f"  to fix: {did_you_mean(str(given), known, 'use one of these')}"
            )
        return given
    by_format: dict[str | None, str] = {}
    for path in paths:
        by_format.setdefault(_format_by_name(path), path)
    if len(by_format) > 1:
        examples = ", ".join(f"{path} ({kind or 'unknown'})" for kind, path in by_format.items())
        raise UserError(f"inputs of several formats\n  found: {examples}\n  to fix: give format=")
    kind = next(iter(by_format))
    if kind is None:
        raise UserError(
            f"the format of {paths[0]} is not known by its name\n"
            f"  known endings: {', '.join(FORMATS)}\n  to fix: give format= ({', '.join(known)})"
        )
    return kind


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(
        f"input file {path} cannot be read: {error}\n  to fix: check the path and its rights"
    )


def _format_by_name(path: str) -> str | None:
    plain = path.partition("?")[0] if is_remote(path) else path
    stem, ending = os.path.splitext(plain.lower())
    if ending in COMPRESSED:
        ending = os.path.splitext(stem)[1]
    return FORMATS.get(ending)


def _expand(path: str) -> list[str]:
    """The files and folders that a path or a glob names, with files in them."""
    path = path.removeprefix("file:")
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if "://" in path:
        raise UserError(
            f"input {path} is neither a local path nor in a store that is known here\n"
            "  found: known are s3://, gs://, abfss://, az:// and hdfs://\n"
            "  to fix: mount it, or read it with Spark and pass the DataFrame"
        )
    full = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(full):
        return [full]
    matches = [full] if os.path.isdir(full) else _matches(full)
    if not any(map(_walk, matches)):
        raise UserError(
            f"no input files at {path}\n"
            f"  looked at: {full}\n"
            "  to fix: check the path; names beginning with _ or . are skipped"
        )
    return matches


def _objects(path: str, options: StorageOptions) -> list[str]:
    """The objects that a url or a glob names."""
    files = remote_files.find_remote(path, options)
    if not files:
        raise UserError(
            f"no input files at {path}\n  looked at: objects below it\n"
            "  to fix: check the url; names beginning with _ or . are skipped"
        )
    return files


def _matches(pattern: str) -> list[str]:
    """The paths that match a glob, checked by the names that its wildcards match."""
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    paths = []
    for match in sorted(glob.glob(pattern, recursive=True)):
        names = match.split("/")[fixed:]
        if any(_hidden(name) for name in names):
            continue
        paths.append(match)
    return paths


def _walk(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    files = []
    seen: set[str] = set()
    for folder, below, names in os.walk(path, followlinks=True, onerror=_cannot_list):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not _hidden(name))
        files += [os.path.join(folder, name) for name in names if not _hidden(name)]
    return files


def _cannot_list(error: OSError) -> None:
    raise UserError(
        f"input folder {error.filename} cannot be listed: {error}\n"
        "  to fix: check its rights, or name the files to read"
    ) from error


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
