"""Users' files at Google and Azure, by the calls that workspaces there are made of.

pyarrow's clients hold calls for minutes: Google's if the server is silent or cuts connections,
Azure's when files are removed, and no limit of ours ends them. Invariant: as in `remote_paths`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pyarrow as pa

from millrace.limits import MIB
from millrace.storage.objects.rest_calls import RestCalls
from millrace.storage.remote_paths import FileRanges, FileVersion, RemotePath

_STREAM_BYTES: Final = 8 * MIB
"""What one request of a stream fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestPath(RemotePath):
    """A file, or a folder, of a bucket."""

    calls: RestCalls = field(repr=False, compare=False)
    """To the whole bucket."""

    def list(self) -> list[tuple[str, int]]:
        """See `RemotePath.list`."""
        return [(listed.name, listed.size) for listed in self.calls.list(self.key, deep=True)]

    def written_at(self) -> Sequence[tuple[str, float]]:
        """See `RemotePath.written_at`."""
        listed = self.calls.list(self.key, deep=True)
        return [(each.name, (each.changed_at_ms or 0) / 1000) for each in listed]

    def version(self) -> FileVersion | None:
        """See `RemotePath.version`."""
        facts = self.calls.facts(self.key) if self.key else None
        if facts is None:
            return None
        return FileVersion(facts.size, 0, f"{self.calls.tag_name} {facts.tag}")

    def are_there(self, keys: Sequence[str]) -> Sequence[bool]:
        """See `RemotePath.are_there`."""
        with ThreadPoolExecutor(self.calls.config.s3_calls_at_once) as pool:
            return list(pool.map(lambda key: self.calls.facts(key) is not None, keys))

    def open_file(self) -> pa.NativeFile:
        """See `RemotePath.open_file`."""
        return pa.PythonFile(_RangeFile(self, self._size()), mode="r")

    def open_ranges(self) -> FileRanges:
        """See `RemotePath.open_ranges`."""
        load = self.calls.range
        return FileRanges(self._size(), lambda position, size: load(self.key, position, size)[1])

    def _size(self) -> int:
        version = self.version()
        if version is None:
            raise FileNotFoundError(f"there is no file {self.url}")
        return version.size

    def open_stream(self, *, unpacked: bool) -> pa.NativeFile:
        """See `RemotePath.open_stream`."""
        stream = pa.BufferedInputStream(self.open_file(), _STREAM_BYTES)
        with suppress(TypeError, ValueError):  # By its name it is not packed.
            if unpacked:
                return pa.CompressedInputStream(stream, pa.Codec.detect(self.key).name)
        return stream

    def read(self) -> bytes | None:
        """See `RemotePath.read`."""
        return self.calls.get(self.key)

    def put(self, data: pa.Buffer | bytes) -> None:
        """See `RemotePath.put`."""
        self.calls.put(self.key, memoryview(data))

    def copy(self, target: Self) -> bool:
        """See `RemotePath.copy`."""
        return self.calls.copy(self.key, target.key)

    def remove(self) -> None:
        """See `RemotePath.remove`."""
        self.calls.delete(self.key)


class _RangeFile(io.RawIOBase):
    """A file of which parts are fetched, as pyarrow asks for them."""

    def __init__(self, path: RestPath, size: int) -> None:
        super().__init__()
        self._path, self._size, self._at = path, size, 0

    def read(self, size: int | None = -1) -> Any:  # noqa: ANN401 - pyarrow takes its buffers as well
        """Bytes from here on, as many as there are up to `size`."""
        left = self._size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        _, data = self._path.calls.range(self._path.key, self._at, wanted)
        if data is None or data.size < wanted:
            raise FileNotFoundError(f"{self._path.url} was removed or replaced while it was read")
        self._at += wanted
        return data

    def read_buffer(self, size: int | None = -1) -> Any:  # noqa: ANN401 - as above
        """The same."""
        return self.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + position
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True
