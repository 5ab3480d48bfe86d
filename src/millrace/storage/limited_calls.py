"""Limits for calls to a store, whose clients have limits for a request or none.

pyarrow passes no time limits to the clients of Azure and Google, and a server that accepts a
connection and stays silent holds them for minutes, or for good. Invariant: no call takes longer
than `Config.gone_after`, with all requests and tries, the client's and ours, in it. A call that was
given up may still be carried out, as one whose answer is lost; callers have to be able to repeat
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import S3Unreachable
from millrace.limits import MIB
from millrace.storage.repeated_calls import repeated
from millrace.wakeup import WorkerThread

PIECE_BYTES: Final = 16 * MIB
"""What is written or read in one call, which has to end within the limit."""
_SHORT_SHARE: Final = 1 / 4
_Answer = TypeVar("_Answer")
Within = Callable[[Callable[[], _Answer]], _Answer]


class LimitedCalls:
    """Runs calls in threads of their own, and gives up those that take too long."""

    def __init__(self, place: str, config: Config) -> None:
        """`place` is the store as people know it."""
        self._place, self._limit_ms = place, ms(config.gone_after)
        self._tries_max = config.s3_tries_max

    def __call__(self, call: Callable[[], _Answer]) -> _Answer:
        """Call it; what it raises is raised here."""
        return self._within(call, self._limit_ms / 1000)

    def repeated(self, call: Callable[[], _Answer], *, is_short: bool = True) -> _Answer:
        """The same for a call that may be carried out twice: it is made again after an error.

        Silence is an error too: the client of Azure may wait on a connection that was closed. Each
        try of a short call has a quarter of the time that is left.
        """
        share = _SHORT_SHARE if is_short else 1
        return repeated(
            lambda left_s: self._within(call, left_s * share),
            (OSError, S3Unreachable),
            tries_max=self._tries_max,
            limit_s=self._limit_ms / 1000,
        )

    def _within(self, call: Callable[[], _Answer], limit_s: float) -> _Answer:
        answers: list[_Answer] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                errors.append(error)

        thread = WorkerThread(run, "millrace-store")
        thread.start()
        if not thread.ended.wait(limit_s):
            raise S3Unreachable(
                f"{self._place} gave no answer in {self._limit_ms} ms\n"
                "  limit: Config.gone_after\n"
                "  to fix: see whether the store can be reached from here; run again, finished "
                "work is kept"
            )
        if errors:
            raise errors[0]
        return answers[0]

    def file(self, file: pa.NativeFile) -> pa.NativeFile:
        """An open file, each read of which is limited."""
        return pa.PythonFile(_LimitedFile(file, self), mode="r")


class _LimitedFile:
    """What pyarrow asks of a Python file."""

    def __init__(self, file: pa.NativeFile, within: LimitedCalls) -> None:
        self._file, self._within = file, within
        self.closed = False
        """Not asked of the file, which does not answer while a read is held up."""

    def read(self, size: int | None = None) -> pa.Buffer:
        """Bytes from here on, as many as there are up to `size`."""
        return self.read_buffer(size)

    def read_buffer(self, size: int | None = None) -> pa.Buffer:
        """The same."""
        wanted = None if size is None or size < 0 else size
        if wanted is not None and wanted <= PIECE_BYTES:
            return self._within(lambda: self._file.read_buffer(wanted))
        parts: list[pa.Buffer] = []
        left = wanted
        while left is None or left:
            most = PIECE_BYTES if left is None else min(left, PIECE_BYTES)
            parts.append(self._within(lambda most=most: self._file.read_buffer(most)))  # type: ignore[misc]
            if not parts[-1].size:
                break
            left = None if left is None else left - parts[-1].size
        return pa.py_buffer(b"".join(parts))

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a place; asks nobody."""
        return int(self._file.seek(position, whence))

    def tell(self) -> int:
        """The place."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close it."""
        self.closed = True
        self._within(self._file.close)
