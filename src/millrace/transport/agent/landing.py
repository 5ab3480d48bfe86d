"""Where fetched bytes land: memory if they are few, an unnamed file that is then mapped if many.

Invariant: bytes land in order and never more than were requested, so a fetch resumes at `got`.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, Protocol

import pyarrow as pa

from millrace.errors import Corrupt
from millrace.storage.store import storage_errors


class Landing(Protocol):
    """Takes the bytes of one fetch."""

    got: int

    def take(self, chunk: pa.Buffer) -> None:
        """Take the next bytes."""

    def finish(self) -> pa.Buffer:
        """All bytes taken, as one buffer."""


class InMemory:
    """One buffer of the right size, aligned as Arrow wants it."""

    def __init__(self, size: int) -> None:
        self.got = 0
        self._size = size
        self._buffer = pa.allocate_buffer(size)
        self._view = memoryview(self._buffer)

    def take(self, chunk: pa.Buffer) -> None:
        """Copy the next bytes into place."""
        end = _checked(self.got + chunk.size, self._size)
        self._view[self.got : end] = memoryview(chunk)
        self.got = end

    def finish(self) -> pa.Buffer:
        """The buffer, as far as it was filled."""
        return self._buffer.slice(0, self.got)


class InFile:
    """A file without a name, which goes with its last user."""

    def __init__(self, size: int, folder: str | None = None) -> None:
        self.got = 0
        self._size = size
        with storage_errors(f"making a temporary file in {folder or tempfile.gettempdir()}"):
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def take(self, chunk: pa.Buffer) -> None:
        """Append the next bytes."""
        end = _checked(self.got + chunk.size, self._size)
        with storage_errors("writing a temporary file of fetched bytes"):
            view = memoryview(chunk).cast("B")
            while view:
                view = view[self._file.write(view) :]
        self.got = end

    def finish(self) -> pa.Buffer:
        """The file, mapped."""
        with self._file:
            if not self.got:
                return pa.py_buffer(b"")
            mapped = mmap.mmap(self._file.fileno(), self.got, access=mmap.ACCESS_READ)
            return pa.py_buffer(mapped)


def landing(size: int, *, memory_bytes_max: int, folder: str | None = None) -> Landing:
    """The right place for so many bytes."""
    return InMemory(size) if size <= memory_bytes_max else InFile(size, folder)


def _checked(end: int, size: int) -> int:
    if end > size:
        raise Corrupt(
            f"an agent sent at least {end} bytes of a partition that has {size}\n"
            "  to fix: run the shuffle again with reuse='verified'"
        )
    return end
