"""A queue's segments as files in a folder of its own."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import weakref
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.reads.queue.blocks import SegmentNumber
from millrace.storage import modes
from millrace.storage.store import storage_errors

_NAME: Final = re.compile(r"queue-(0|[1-9][0-9]*)\.ipc")
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_REFUSALS: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})


class SegmentFiles:
    """The real disk. Files of earlier queues in the folder are removed."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._written: tuple[SegmentNumber, int, int] | None = None
        """Segment, handle and length of the file that is written to."""
        self._maps: dict[SegmentNumber, pa.Buffer] = {}
        self._views: dict[SegmentNumber, dict[int, weakref.ref[Any]]] = {}
        self._names: set[SegmentNumber] = set()
        with storage_errors(f"opening the queue in {self._folder}"):
            modes.make_folders(self._folder)
            for name in os.listdir(self._folder):
                if _NAME.fullmatch(name):
                    os.unlink(os.path.join(self._folder, name))

    def path(self, segment: SegmentNumber) -> str:
        """The file of a segment."""
        return os.path.join(self._folder, f"queue-{segment}.ipc")

    def append(self, segment: SegmentNumber, data: memoryview) -> int:
        """See `QueueDisk.append`."""
        with storage_errors(f"writing {self.path(segment)}"):
            handle, position = self._open_for_writing(segment)
            done = 0
            while done < len(data):
                done += os.pwrite(handle, data[done:], position + done)
            self._written = (segment, handle, position + done)
        return position

    def map(self, segment: SegmentNumber, position: int, length: int) -> pa.Buffer:
        """See `QueueDisk.map`."""
        views = self._views.setdefault(segment, {})
        known = views.get(position)
        view = known() if known is not None else None
        if view is None or len(view) != length:
            whole = self._mapped(segment, position + length)
            view = np.frombuffer(whole, np.uint8, length, position)
            views[position] = weakref.ref(view)
        return pa.py_buffer(view)

    def is_held(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """See `QueueDisk.is_held`."""
        views_by_position = self._views.get(segment)
        if not views_by_position:
            return False
        for position in [at for at, view in views_by_position.items() if view() is None]:
            del views_by_position[position]
        living = ((position, view()) for position, view in views_by_position.items())
        return any(
            position < end and begin < position + len(view)
            for position, view in living
            if view is not None
        )

    def punch(self, segment: SegmentNumber, begin: int, end: int) -> bool:
        """See `QueueDisk.punch`."""
        path = self.path(segment)
        with storage_errors(f"punching {path}"):
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                code = _fallocate(handle, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin)
            finally:
                os.close(handle)
            if code and code not in _REFUSALS:
                raise OSError(code, os.strerror(code), path)
        return not code

    def unlink(self, segment: SegmentNumber) -> None:
        """See `QueueDisk.unlink`."""
        self._maps.pop(segment, None)
        self._views.pop(segment, None)
        if self._written is not None and self._written[0] == segment:
            self._close_written()
        with storage_errors(f"removing {self.path(segment)}"), suppress(FileNotFoundError):
            os.unlink(self.path(segment))  # Gone already if another session took over.
        self._names.remove(segment)

    def used_bytes(self) -> int:
        """See `QueueDisk.used_bytes`."""
        return sum(os.stat(self.path(segment)).st_blocks * 512 for segment in self._names)

    def close(self) -> None:
        """See `QueueDisk.close`."""
        for segment in sorted(self._names):
            self.unlink(segment)

    def _open_for_writing(self, segment: SegmentNumber) -> tuple[int, int]:
        if self._written is not None and self._written[0] == segment:
            return self._written[1:]
        assert segment not in self._names, f"segment {segment} grows no more"
        self._close_written()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = modes.opener(self.path(segment), flags)
        self._written = (segment, handle, 0)
        self._names.add(segment)
        return handle, 0

    def _close_written(self) -> None:
        if self._written is not None:
            os.close(self._written[1])
            self._written = None

    def _mapped(self, segment: SegmentNumber, length: int) -> pa.Buffer:
        """The whole file, mapped; an older map lives until no view uses it."""
        known = self._maps.get(segment)
        if known is None or known.size < length:
            path = self.path(segment)
            with storage_errors(f"mapping {path}"), pa.memory_map(path) as file:
                known = file.read_buffer()  # outlives the handle
            self._maps[segment] = known
        return known


def _fallocate(handle: int, mode: int, begin: int, length: int) -> int:
    """0, or the number of the error."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        return errno.ENOSYS
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    return ctypes.get_errno() if function(handle, mode, begin, length) else 0
