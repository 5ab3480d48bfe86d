"""The call file of a process: its calls under way, and the outcomes of paid calls that ended.

The kernel keeps the file when the process ends. It is never synced: it is of use only as long as
the host runs. Layout: a table of marks, one for each call that can be under way at once, then
frames, each with its length and checksum.
Invariant: a call is marked before it is made, and its outcome is in the file before the mark goes.
A file that cannot be written is removed; the next process then knows nothing of the calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from millrace.pipeline.core.call_outcomes import (
    CallMark,
    CallOutcome,
    CallResult,
    Failure,
    LeftCalls,
    LeftOutcome,
)
from millrace.pipeline.core.hop_rows import Offsets
from millrace.pipeline.paid.spend import CallSpend, Spend
from millrace.storage import modes

VERSION: Final = 2
_FIELDS: Final = 3
"""Fields of a mark: index or offset of the first row plus one, the one behind the last, attempt."""
_WORD: Final = 8
_FRAME: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_OPEN: set[str] = set()
"""Paths of the open files of this process: opening one again would release its lock."""


class CallFile:
    """The call file of this process; for one thread, except for marks of different slots."""

    def __init__(self, slots: int) -> None:
        self._file: int | None = None
        self._path = ""
        self._memory: mmap.mmap | None = None
        self._base = self._end = 0
        self.marks: array[int] | memoryview[int] = array("q", bytes(_WORD * _FIELDS * slots))
        """For a call of slot n: begin plus one at 3 n, end and attempt behind it."""

    @classmethod
    def open(cls, path: str | None, header: Mapping[str, Any], *, slots: int) -> CallFile:
        """Begin a file. Without a path, or where that is impossible, marks are in memory only."""
        call_file, boot = cls(slots), boot_id()
        if path is None or boot is None or path in _OPEN:
            return call_file
        with contextlib.suppress(OSError):
            call_file._begin(path, dict(header) | {"version": VERSION, "boot": boot}, slots)
        return call_file

    def _begin(self, path: str, header: Mapping[str, Any], slots: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        file = modes.opener(path, flags)
        _OPEN.add(path)
        self._file, self._path = file, path
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = _WORD * (1 + _FIELDS * slots)
            # Written, not only made longer: a full disk is an error here and no signal later.
            self._fill(slots.to_bytes(_WORD, "little") + bytes(size - _WORD), 0)
            self._memory = mmap.mmap(file, size)
            self.marks = memoryview(self._memory).cast("q")[1:]
            self._base = self._end = size
            self._write(b"H", json.dumps(header).encode())
            self._base = self._end
        except OSError:
            self.remove()
            raise

    # Notes about calls.
    def next_batch(self, step: str, offsets: Offsets) -> None:
        """From now on, indexes are those of these rows."""
        for slot in range(0, len(self.marks), _FIELDS):
            self.marks[slot] = 0
        if self._file is None:
            return
        self._end = self._base
        with self._kept_whole():
            os.ftruncate(self._file, self._base)
            name = step.encode()
            rows = np.ascontiguousarray(offsets, np.int64).tobytes()
            self._write(b"B", len(name).to_bytes(4, "little") + name + rows)

    def begin(self, slot: int, begin: int, end: int, attempt: int) -> None:
        """A call is about to be made."""
        at = slot * _FIELDS
        self.marks[at + 1], self.marks[at + 2] = end, attempt
        self.marks[at] = begin + 1

    def end(self, slot: int) -> None:
        """A call is over, and its outcome is in the file."""
        self.marks[slot * _FIELDS] = 0

    @property
    def size(self) -> int:
        """How long the file is."""
        return self._end

    def outcome(self, number: int, end: int, outcome: CallOutcome) -> None:
        """A paid call has ended; `end` is the offset behind its last row."""
        if self._file is None:
            return
        about = {
            "number": number,
            "begin": outcome.first,
            "end": end,
            "attempt": outcome.attempt,
            "at_us": outcome.at_us,
            "seconds": outcome.seconds,
            "is_refused": outcome.refused_s is not None,
            "failure": None if outcome.failure is None else asdict(outcome.failure),
            "noted": asdict(outcome.noted),
        }
        text = json.dumps(about).encode()
        made = outcome.made
        rows = made.serialize() if made is not None and made.num_rows else b""
        with self._kept_whole():
            self._write(b"O", _LENGTH.pack(len(text)), text, rows)

    def close(self) -> None:
        """Leave the file to the next process."""
        if self._file is None:
            return
        kept = array("q", self.marks)
        if isinstance(self.marks, memoryview):
            self.marks.release()
        self.marks = kept
        if self._memory is not None:
            self._memory.close()
        os.close(self._file)
        self._file = self._memory = None
        _OPEN.discard(self._path)

    def remove(self) -> None:
        """Close and remove the file: its content is of no use any more."""
        path, had_file = self._path, self._file is not None
        self.close()
        if had_file:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _write(self, kind: bytes, *parts: bytes) -> None:
        payload = kind + b"".join(parts)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._fill(frame, self._end)
        self._end += len(frame)

    def _fill(self, data: bytes, at: int) -> None:
        """Write all bytes: a disk that becomes full accepts only a part of them."""
        assert self._file is not None
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], at + done)

    @contextlib.contextmanager
    def _kept_whole(self) -> Iterator[None]:
        """Remove the file if a write fails: an incomplete file would mislead the next process."""
        try:
            yield
        except OSError:
            self.remove()


def claim(path: str) -> LeftCalls | None:
    """The content of a dead process's file; None if it lives, or the file is of another boot."""
    if path in _OPEN:
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.fdopen(os.dup(file), "rb") as stream:
            data = stream.read()
    except OSError:
        return None
    finally:
        os.close(file)
    with contextlib.suppress(ValueError, KeyError, TypeError, struct.error):
        return _parsed(data)
    return None


def boot_id() -> str | None:
    """The id of this run of the kernel; None if the system has none."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _parsed(data: bytes) -> LeftCalls | None:
    slots = int.from_bytes(data[:_WORD], "little")
    begin = _WORD * (1 + _FIELDS * slots)
    if begin > len(data):
        return None
    marks = memoryview(data)[_WORD:begin].cast("q")
    left: LeftCalls | None = None
    for payload in _frames(data, begin):
        if payload[:1] == b"H":
            left = LeftCalls(header=json.loads(payload[1:]))
            if left.header["version"] != VERSION or left.header["boot"] != boot_id():
                return None
        elif left is not None:
            _add(left, payload[:1], payload[1:])
    if left is not None:
        fields = [marks[at : at + _FIELDS].tolist() for at in range(0, len(marks), _FIELDS)]
        left.marks = [
            CallMark(first - 1, end or first, number) for first, end, number in fields if first
        ]
    return left if left is None or _makes_sense(left) else None


def _makes_sense(left: LeftCalls) -> bool:
    """Whether all indexes are those of rows."""
    rows_max = sys.maxsize if left.offsets is None else len(left.offsets)
    return all(0 <= mark.begin < mark.end <= rows_max for mark in left.marks)


def _frames(data: bytes, at: int) -> Iterator[bytes]:
    """Whole frames; the last one may have been cut off with its process."""
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _FRAME.size + length


def _add(left: LeftCalls, kind: bytes, body: bytes) -> None:
    match kind:
        case b"B":
            length = int.from_bytes(body[:4], "little")
            left.step = body[4 : 4 + length].decode()
            if left.header.get("segment") is None:
                left.offsets = np.frombuffer(body[4 + length :], np.int64)
        case b"O":
            (length,) = _LENGTH.unpack_from(body)
            about = json.loads(body[_LENGTH.size : _LENGTH.size + length])
            left.outcomes.append(_outcome(about, body[_LENGTH.size + length :]))
        case _:
            raise ValueError(f"a frame of kind {kind!r}")


def _outcome(about: dict[str, Any], rows: bytes) -> LeftOutcome:
    noted = about["noted"] | {"allowed": None}
    result: CallResult | None = rows
    if about["is_refused"]:
        result = None
    elif about["failure"] is not None:
        result = Failure(**about["failure"])
    return LeftOutcome(
        number=about["number"],
        begin=about["begin"],
        end=about["end"],
        attempt=about["attempt"],
        result=result,
        seconds=about["seconds"],
        noted=CallSpend(**(noted | {"spend": Spend(**noted["spend"])})),
        at_us=about["at_us"],
    )
