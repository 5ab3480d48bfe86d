"""Files as a source of a job: a row for each, with its path, size and time of change."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.names import path_text

SCHEMA: Final = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("modified", pa.timestamp("us", "UTC"))]
)
Pattern = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class FileListing:
    """A listing of files. Made by `millrace.files`.

    Example:
        >>> mr.files("texts/*.txt").listing.column_names
        ['path', 'size', 'modified']
    """

    patterns: tuple[str, ...]
    listing: pa.Table
    """Path (absolute), size in bytes and time of change, by path."""


def files(*patterns: Pattern | Sequence[Pattern]) -> FileListing:
    """List files for `job.source`: a row for each with `path`, `size` and `modified`.

    Args:
        patterns: paths, folders (with all that lies below them) or globs; `**` stands for any
            number of folders. Names that begin with `.` or `_` are left out, unless they are given.

    Example:
        >>> texts = ws.job("sizes").source("texts", mr.files("texts/**/*.txt"))
        >>> texts.columns
        ['path', 'size', 'modified']
    """
    given = [text for entry in patterns for text in _texts(entry)]
    if not given:
        raise UserError('files() of nothing\n  to fix: name files, as in files("videos/**/*.mp4")')
    paths = sorted({path for pattern in given for path in _matching_files(pattern)})
    rows = []
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue  # It went while it was listed.
        rows.append({"path": path, "size": status.st_size, "modified": status.st_mtime_ns // 1000})
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return FileListing(tuple(given), pa.Table.from_arrays(columns, schema=SCHEMA))


def _texts(given: Pattern | Sequence[Pattern]) -> list[str]:
    several: Sequence[object] = [given]
    if not isinstance(given, str) and isinstance(given, Sequence):
        several = given
    return [path_text(path, "files()") for path in several]


def _matching_files(pattern: str) -> list[str]:
    full = os.path.abspath(os.path.expanduser(pattern.removeprefix("file:")))
    if "://" in pattern.removeprefix("file:"):
        raise UserError(f"files({pattern!r}) is not a local path\n  to fix: mount it")
    fixed = next((n for n, part in enumerate(full.split("/")) if glob.has_magic(part)), None)
    matches = [full] if os.path.exists(full) else sorted(glob.glob(full, recursive=True))
    if not os.path.exists(full) and fixed is not None:
        matches = [match for match in matches if not _hidden(match.split("/")[fixed:])]
    paths = [path for match in matches for path in _below(match)]
    if not paths:
        raise UserError(
            f"files({pattern!r}) finds none\n  looked at: {full}\n"
            "  to fix: check the path; names that begin with . or _ are left out"
        )
    return paths


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    for folder, below, names in os.walk(path, onerror=_cannot_list):
        below[:] = [name for name in below if not _hidden([name])]
        yield from (os.path.join(folder, name) for name in names if not _hidden([name]))


def _hidden(names: Sequence[str]) -> bool:
    return any(name.startswith((".", "_")) for name in names)


def _cannot_list(error: OSError) -> None:
    raise UserError(
        f"folder {error.filename} cannot be listed: {error}\n  to fix: check its rights"
    ) from error
