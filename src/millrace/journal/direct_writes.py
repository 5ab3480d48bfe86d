"""Rows that a process writes into the workspace itself, so that a publish only refers to them.

A process has a few files of its own in the folder of the journals. A publish takes one, adds its
rows, of all journals one behind the other, syncs it once, and refers to the ranges. In a bucket,
where no file grows, each publish is a new object.

Invariant: what is referred to is durable. A file whose publish did not succeed is not written to
again, and never removed here: its rows may count. The owner removes files that nobody refers to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pyarrow as pa

from millrace.config import Config
from millrace.faults import fault
from millrace.journal.core.row_format import (
    KEY,
    TIMESTAMP,
    one_run,
)
from millrace.journal.core.values import (
    Adopt,
    Append,
    FileRange,
    JournalInfo,
    Publish,
    Rows,
    SegmentFile,
    StampedFile,
)
from millrace.journal.row_files import ADOPTED, BesideRows, RowMessage, row_messages
from millrace.storage import modes
from millrace.storage.local import sync_folder
from millrace.storage.store import Store, storage_errors

Sent = TypeVar("Sent")
_IDLE_MAX: Final = 4
"""Files that are kept open between publishes."""


class _OpenFile:
    """A file on a disk that all see, to which this process adds."""

    def __init__(self, path: str, name: str) -> None:
        self.name, self.position = name, 0
        self._path = path
        self._handle = modes.opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        fault("direct.write.after_create")

    def add(self, messages: Sequence[RowMessage]) -> tuple[FileRange, ...]:
        """Write messages at the end, durably."""
        try:
            return self._add(messages)
        except OSError:
            self._undo()
            raise

    def _add(self, messages: Sequence[RowMessage]) -> tuple[FileRange, ...]:
        at, ranges = self.position, []
        for message in messages:
            ranges.append(message.at(at))
            _write(self._handle, message.data, at)
            at += message.data.size
        fault("direct.write.before_sync")
        os.fdatasync(self._handle)
        if not self.position:
            sync_folder(os.path.dirname(self._path))
        fault("direct.write.after_sync")
        self.position = at
        return tuple(ranges)

    def _undo(self) -> None:
        """Free what was written for a publish that is not sent: the disk may be full."""
        with contextlib.suppress(OSError):
            if self.position:
                os.ftruncate(self._handle, self.position)
            else:
                os.unlink(self._path)

    def close(self) -> None:
        """Write no more."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


@dataclass(slots=True)
class _NewObject:
    """An object of a bucket that is to be put."""

    store: Store
    path: str
    name: str
    position: int = 0
    put_at_ms: int | None = None

    def add(self, messages: Sequence[RowMessage]) -> tuple[FileRange, ...]:
        """Put all of it."""
        ranges = []
        for message in messages:
            ranges.append(message.at(self.position))
            self.position += message.data.size
        fault("direct.write.before_sync")
        self.put_at_ms = self.store.now_ms()
        self.store.create(self.path, b"".join(message.data for message in messages), sync=True)
        fault("direct.write.after_sync")
        return tuple(ranges)

    def close(self) -> None:
        """Nothing is open."""


class DirectWriter:
    """Writes rows into the folder of a workspace's journals. May be used by many threads."""

    def __init__(self, store: Store, folder: str, config: Config) -> None:
        self._store, self._folder, self._config = store, folder, config
        self._idle: list[_OpenFile] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def write(
        self, request: Publish, infos: Mapping[str, JournalInfo]
    ) -> AbstractContextManager[Publish]:
        """Write the rows of a request; a block that sends the request with references to them.

        `infos` are the journals of its parts, in their order.
        """
        parts = _parts_to_write(request, infos)
        messages = {
            number: self._messages(part.rows, infos[part.journal], _beside(part))
            for number, part in parts.items()
        }
        file, ranges = self._written([one for some in messages.values() for one in some])
        referring, at = list(request.parts), 0
        for number, some in messages.items():
            part = parts[number]
            info = infos[part.journal]
            some_ranges = ranges[at : at + len(some)]
            adopted = _reference(info, file, some_ranges, is_keyed=_beside(part).is_given)
            referring[number] = Adopt(
                journal=part.journal, files=(adopted,), expected=part.expected, id=info.id
            )
            at += len(some)
        return self._sending(replace(request, parts=tuple(referring)), file)

    def write_stamped(
        self, rows: pa.RecordBatch, info: JournalInfo
    ) -> AbstractContextManager[StampedFile] | None:
        """Write stamped rows; a block that sends a reference. None if that cannot describe them."""
        stamps = one_run(rows)
        if stamps is None:
            return None
        producer, clock, flag = stamps
        beside = BesideRows(*(_unless_null(rows[name]) for name in (KEY, TIMESTAMP)))
        messages = self._messages(rows.select(info.schema.names), info, beside)
        file, ranges = self._written(messages)
        stamped = StampedFile(
            id=info.id,
            file=_reference(info, file, ranges, is_keyed=beside.is_given),
            producer=producer,
            first_clock=clock,
            flag=flag,
        )
        return self._sending(stamped, file)

    def _messages(
        self, rows: Rows | pa.RecordBatch, info: JournalInfo, beside: BesideRows
    ) -> list[RowMessage]:
        target = self._config.journal_range_bytes_target
        return list(row_messages(rows, info.schema, target, where=info.name, beside=beside))

    def _written(
        self, messages: Sequence[RowMessage]
    ) -> tuple[_OpenFile | _NewObject, tuple[FileRange, ...]]:
        with storage_errors("writing rows for the journals"):
            file = self._taken()
            try:
                return file, file.add(messages)
            except BaseException:
                file.close()
                raise

    @contextmanager
    def _sending(self, referring: Sent, file: _OpenFile | _NewObject) -> Iterator[Sent]:
        fault("direct.publish.before_send")
        try:
            yield referring
        except BaseException:
            # The owner may have the rows, or may get them yet.
            file.close()
            raise
        fault("direct.publish.after_answer")
        self._give_back(file)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for file in idle:
                file.close()

    def _taken(self) -> _OpenFile | _NewObject:
        if self._pid != os.getpid():
            # The files are those of the process that this one was forked from.
            inherited, self._idle = self._idle, []
            self._pid, self._lock = os.getpid(), threading.Lock()
            for file in inherited:
                file.close()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        name = f"{ADOPTED}/{secrets.token_hex(16)}.ipc"
        relative = f"{self._folder}/{name}"
        if self._store.remote:
            return _NewObject(self._store, relative, name)
        return _OpenFile(self._store.path(relative), name)

    def _give_back(self, file: _OpenFile | _NewObject) -> None:
        if (
            isinstance(file, _OpenFile)
            and file.position < self._config.journal_segment_bytes_target
        ):
            with self._lock:
                if len(self._idle) < _IDLE_MAX:
                    self._idle.append(file)
                    return
        file.close()


def direct_size(request: Publish) -> tuple[int, int]:
    """Bytes and count of the rows of a request that can be in a file."""
    parts = _parts_for_files(request).values()
    size = sum(part.rows.nbytes + _beside(part).nbytes for part in parts)
    return size, sum(part.rows.num_rows for part in parts)


def _parts_for_files(request: Publish) -> dict[int, Append]:
    """The parts with rows, by number."""
    return {
        number: part
        for number, part in enumerate(request.parts)
        if isinstance(part, Append) and part.rows.num_rows
    }


def _beside(part: Append) -> BesideRows:
    return BesideRows(part.keys, part.timestamps)


def _unless_null(column: pa.Array) -> pa.Array | None:
    return None if column.null_count == len(column) else column


def _parts_to_write(request: Publish, infos: Mapping[str, JournalInfo]) -> dict[int, Append]:
    """The same, those of one journal behind each other, as they are adopted."""
    journals = {name: number for number, name in enumerate(infos)}
    parts = _parts_for_files(request)
    return dict(sorted(parts.items(), key=lambda entry: journals[entry[1].journal]))


def _reference(
    info: JournalInfo,
    file: _OpenFile | _NewObject,
    ranges: tuple[FileRange, ...],
    *,
    is_keyed: bool,
) -> SegmentFile:
    return SegmentFile(
        path=file.name,
        schema=info.schema,
        bytes=ranges[-1].position + ranges[-1].bytes,
        ranges=ranges,
        is_open=True,
        is_keyed=is_keyed,
        put_at_ms=file.put_at_ms if isinstance(file, _NewObject) else None,
    )


def _write(handle: int, data: pa.Buffer, position: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, position)
        position += done
        view = view[done:]
