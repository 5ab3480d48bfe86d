"""Users' files in stores: what each kind of store does for them.

`file_systems` reaches S3 and HDFS by pyarrow, `rest_paths` Google and Azure. Invariant: the tag
of a version is the store's own (ETag, generation, version id), so two versions of an object never
have the same one; a url carries no secret; each call ends within `Config.gone_after`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from millrace.errors import S3Unreachable, StorageError
from millrace.storage.limited_calls import LimitedCalls


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it is now."""

    size: int
    changed_ns: int
    tag: str | None
    """The store's own name of this version; None in HDFS, which has times alone."""


@dataclass(frozen=True, slots=True)
class FileRanges:
    """A file, of which many threads may fetch parts."""

    size: int
    load: Callable[[int, int], Any]
    """The bytes from a place on, so many; None if the file is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePath(ABC):
    """A file, or a folder, of a store."""

    kind: str
    """`s3`, `gs`, `azure` or `hdfs`."""
    root: str
    """What stands before the key in a url, as in `s3://bucket`."""
    key: str
    behind: str = ""
    """The parameters of the url, from the question mark on."""
    limited: LimitedCalls = field(repr=False, compare=False)
    """Gives up calls that take too long, with all their requests."""

    @property
    def url(self) -> str:
        """The path as users write it."""
        return f"{self.root}/{self.key}{self.behind}"

    def at(self, key: str) -> Self:
        """Another path of the same store."""
        return replace(self, key=key)

    def below(self, name: str) -> Self:
        """A path in this folder."""
        return self.at(f"{self.key}/{name}" if self.key else name)

    @abstractmethod
    def list(self) -> list[tuple[str, int]]:
        """Names of all files below this folder, from there on, and their sizes."""

    @abstractmethod
    def written_at(self) -> Sequence[tuple[str, float]]:
        """Names of all files below this folder, and when each of them was written, in seconds."""

    @abstractmethod
    def version(self) -> FileVersion | None:
        """The file as it is now; None if there is none."""

    @abstractmethod
    def are_there(self, keys: Sequence[str]) -> Sequence[bool]:
        """Whether there is a file at each of these keys."""

    @abstractmethod
    def open_file(self) -> pa.NativeFile:
        """The file, of which parts are fetched."""

    @abstractmethod
    def open_ranges(self) -> FileRanges:
        """The file, of which parts are fetched by many threads."""

    @abstractmethod
    def open_stream(self, *, unpacked: bool) -> pa.NativeFile:
        """The bytes of the file from its beginning; unpacked if its name says that it is packed."""

    @abstractmethod
    def read(self) -> bytes | None:
        """All bytes of a small file; None if there is none."""

    @abstractmethod
    def put(self, data: pa.Buffer | bytes) -> None:
        """Write a file, over an earlier one; in a bucket it appears whole."""

    @abstractmethod
    def copy(self, target: Self) -> bool:
        """Copy a file within its store, whole; False if it is gone."""

    @abstractmethod
    def remove(self) -> None:
        """Remove a file if it is there."""


@contextmanager
def storage_answers(doing: str, url: str) -> Iterator[None]:
    """Turn what a store refuses into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, StorageError):
        raise
    except (pa.ArrowException, OSError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]
        kind = S3Unreachable if "curlCode" in text or "onnection" in text else StorageError
        raise kind(
            f"{doing} {url} failed: {text}\n"
            "  to fix: see whether the store can be reached and these rights are given, here and "
            "on the executors; or give storage_options="
        ) from error
