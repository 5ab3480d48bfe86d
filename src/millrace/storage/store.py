"""The contract of a store: the few operations that the protocol of shuffles is made of.

`storage/local.py` implements it for a folder on a local or shared disk,
`storage/objects/object_store.py` for a part of a bucket. Writers, readers, reuse and
clean-up know only this contract.

Invariant: a file made by `create` appears whole or not at all, and never replaces another. A name
that leads outside the store is refused.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from millrace.errors import StorageError

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full; free space or choose another workspace folder",
    errno.EDQUOT: "the disk quota is used up; free space or choose another workspace folder",
    errno.EACCES: "no permission; give this user the right to write there",
    errno.EPERM: "not permitted; give this user the right to write there",
    errno.EROFS: "the file system is read-only; choose another workspace folder",
    errno.ENOENT: "the folder or file vanished; somebody removed it while it was in use",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.EIO: "the disk failed; look at the system log",
    errno.ENOTDIR: "a part of the path is a file; give a folder, or a path where nothing is yet",
    errno.EISDIR: "there is a folder of this name; choose another path",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.ELOOP: "links of the path lead in a circle; choose another path",
}

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@contextlib.contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "see that the path exists and may be used")
        raise StorageError(f"{doing} failed\n  found: {error}\n  to fix: {advice}") from error


class Store(Protocol):
    """A folder or a part of a bucket that keeps shuffles. Names are relative to it and use `/`."""

    @property
    def root(self) -> str:
        """The address that `millrace.open` takes."""

    @property
    def remote(self) -> bool:
        """Whether each operation is a request to a server: few are better, many at a time too."""

    def path(self, relative: str) -> str:
        """A name as people know it; one that leads outside is refused."""

    def workspace_id(self) -> str | None:
        """Which workspace this is; None if it is none."""

    def probe(self) -> None:
        """Check that the store does what writers rely on; called before the first write."""

    def read(self, relative: str) -> bytes | None:
        """A whole small file; None if it is not there."""

    def create(
        self, relative: str, data: bytes, *, sync: bool = False, mode: int | None = None
    ) -> bool:
        """Make a file whole, unless the name is taken. Returns whether this call made it.

        `mode` is a folder's, in place of the one that the workspace records.
        """

    def replace(self, relative: str, data: bytes) -> None:
        """Put a whole file in place, over an earlier one."""

    def claim(self, relative: str) -> bool:
        """Make a folder, unless it is there. Exactly one of many callers gets True."""

    def make_folder(self, relative: str) -> bool:
        """See that a file can be made in a folder."""

    def names(self, relative: str) -> list[str]:
        """Names in a folder, in no order; empty if there is no such folder."""

    def names_if_few(self, relative: str, most: int) -> list[str] | None:
        """Names in a folder, or None if there are more than that."""

    def below(self, relative: str) -> list[str]:
        """Paths of all files below a folder, from there on, and of folders with nothing in them.

        Of a bucket this includes the claims on folders.
        """

    def names_after(self, relative: str, name: str) -> list[str]:
        """Names in a folder that sort behind this one, in no order."""

    def numbers(self, relative: str) -> list[int]:
        """Names in a folder that are numbers, lowest first."""

    def exists(self, relative: str) -> bool:
        """Whether there is a file or folder of this name."""

    def sizes(self, relative: str, names: Iterable[str]) -> Mapping[str, int]:
        """Bytes of these files of a folder, or below it; those that are gone are left out."""

    def load(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer]:
        """A file's length, and this range of it, or no bytes if it ends before that.

        Raises `FileNotFoundError` if there is no such file.
        """

    def load_into(self, relative: str, offset: int, into: memoryview) -> int | None:
        """Fill memory from a file; None, or the file's length if it ends before that.

        Raises `FileNotFoundError` if there is no such file.
        """

    def payload_folder(self, relative: str) -> AbstractContextManager[str]:
        """A folder on this host's disk to write the files of a folder here."""

    def keep(self, folder: str, relative: str, names: Iterable[str], *, sync: bool) -> None:
        """Put files of a `payload_folder` where they belong, whole."""

    def spill_folder(self) -> str:
        """Where tasks put rows aside on this host's disk."""

    def touch(self, relative: str) -> None:
        """Set a file's time of change to now, making it if it is missing."""

    def prints(self, paths: Sequence[str]) -> list[str | None]:
        """Of each file something that is another once the file was written again, at little cost.

        None of those that are not there, and where it is not known well enough or costs too much.
        """

    def changed_at_ms(self, relative: str) -> int | None:
        """When a file, or the youngest thing directly in a folder, last changed; None if gone."""

    def now_ms(self) -> int:
        """The time, by the clock that files of this store are dated by."""

    def remove_drafts(self, relative: str, *, changed_before_ms: int) -> None:
        """Remove unfinished files that were begun in a folder long ago."""

    def remove_file(self, relative: str) -> None:
        """Remove a file if it is there."""

    def remove_folder_if_empty(self, relative: str) -> bool:
        """Remove a folder that holds nothing. Returns whether it is gone."""

    def discard(self, relative: str) -> bool:
        """Take an attempt's folder away; a writer that is still there cannot finish any more."""

    def empty_trash(self) -> None:
        """Delete what `discard` left."""

    def sync_folders(self, relative: str) -> None:
        """Make the entries of a folder durable, and of those above it up to the workspace."""

    def each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Call a function for each item, several at a time where that is worth it."""

    def ahead(
        self,
        function: Callable[[Item], Answer],
        items: Iterable[Item],
        *,
        size_of: Callable[[Item], int],
    ) -> Iterator[Answer]:
        """The same for answers of many bytes: in order, and only so many ahead of the reader."""
