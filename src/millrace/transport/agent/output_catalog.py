"""The map outputs of an agent's folder, by attempt, and their bytes.

Invariant: the catalog serves an attempt only while its index is on disk. It checks that each time,
so it notices attempts that appear or go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.config import Config
from millrace.errors import StorageError, UserError
from millrace.ids import Attempt, AttemptId, Latest, MapTaskId
from millrace.scan.source import has_content
from millrace.shuffle import reader, reuse
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.known_outputs import KnownOutputs
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_messages import ByteRange, Search, Ticket, WhichAttempt


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """Bytes of one range or of several, one behind the other, and how many of each."""

    data: pa.Buffer
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _RangeRequest:
    attempt: AttemptId
    meta: PartitionMeta
    start: int

    @property
    def bytes(self) -> int:
        return self.meta.bytes - self.start


@dataclass(slots=True)
class OutputCatalog:
    """The map outputs of one folder."""

    store: LocalStore
    config: Config
    registry: KnownOutputs = field(default_factory=KnownOutputs)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def index(self, which: WhichAttempt) -> MapTaskIndex:
        """The index of just this attempt, or of the latest."""
        task, attempt = which.task, which.attempt
        if not isinstance(attempt, Latest):
            known = self._known(AttemptId(task, attempt))
            if known is not None:
                return known
        indexes = self._read(task, attempt)
        with self._lock:
            self._remember(task, indexes)
            return self.registry.find(task, attempt).index

    def messages(self, ticket: Ticket) -> Iterator[RangeBytes]:
        """The bytes that a ticket asks for, range after range.

        Ranges that fit into a message are sent together: for small ones a message costs more than
        its bytes. Larger ones are sent as slices of the mapped file.
        """
        gathered: list[_RangeRequest] = []
        for part in ticket.ranges:
            request = self._request(part)
            if request.bytes > ticket.chunk_bytes:
                yield from self._gather(gathered)
                gathered = []
                yield from self._slices(request, ticket.chunk_bytes)
            elif request.bytes:
                gathered.append(request)
                if sum(part.bytes for part in gathered) >= ticket.chunk_bytes:
                    yield from self._gather(gathered)
                    gathered = []
        yield from self._gather(gathered)

    def find(self, search: Search) -> Iterator[MapTaskIndex | None]:
        """For each piece of work an attempt that did it, or None."""
        for made_from in search.made_from:
            yield reuse.find(
                self.store, made_from, has_content=_can_see_content, verify=search.verify
            )

    def _request(self, part: ByteRange) -> _RangeRequest:
        index = self.index(part.which)
        meta = reader.partition_meta(index, part.partition)
        if part.start > meta.bytes:
            raise UserError(
                f"start {part.start} is outside the partition's {meta.bytes} bytes\n"
                "  to fix: ask for bytes within it"
            )
        return _RangeRequest(index.id, meta, part.start)

    def _slices(self, request: _RangeRequest, chunk_bytes: int) -> Iterator[RangeBytes]:
        pieces = reader.fetch_chunks(
            self.store, request.attempt, request.meta, chunk_bytes=chunk_bytes, start=request.start
        )
        for piece in pieces:
            yield RangeBytes(piece, (piece.size,))

    def _gather(self, gathered: list[_RangeRequest]) -> Iterator[RangeBytes]:
        sizes = tuple(request.bytes for request in gathered)
        if not sizes:
            return
        data = pa.allocate_buffer(sum(sizes))
        view = memoryview(data).cast("B")
        for request in gathered:
            into, view = view[: request.bytes], view[request.bytes :]
            reader.read_range(self.store, request.attempt, request.meta, into, request.start)
        yield RangeBytes(data, sizes)

    def _known(self, attempt: AttemptId) -> MapTaskIndex | None:
        with self._lock:
            known = self.registry.tasks.get(attempt.task, {}).get(attempt.attempt)
        return known.index if known is not None and self._has_index(attempt) else None

    def _read(self, task: MapTaskId, attempt: Attempt | Latest) -> list[MapTaskIndex]:
        """The requested attempt; if it is missing, all attempts, for the error to name."""
        if not isinstance(attempt, Latest):
            index = reader.find_index(self.store, AttemptId(task, attempt))
            if index is not None:
                return [index]
        numbers = self.store.numbers(layout.task_folder(task))
        indexes = (
            reader.index_or_none(self.store, AttemptId(task, Attempt(number))) for number in numbers
        )
        return [index for index in indexes if index is not None]

    def _remember(self, task: MapTaskId, indexes: list[MapTaskIndex]) -> None:
        if sum(map(len, self.registry.tasks.values())) >= self.config.agent_indexes_max:
            self.registry.tasks.clear()
        self.registry.tasks.pop(task, None)
        for index in indexes:
            self.registry.register(index)

    def _has_index(self, attempt: AttemptId) -> bool:
        folder = layout.attempt_folder(attempt)
        names = (layout.INDEX_BIN, layout.INDEX_JSON)
        return any(self.store.exists(f"{folder}/{name}") for name in names)


def _can_see_content(recent: Mapping[str, str]) -> bool:
    try:
        return has_content(recent)
    except (OSError, StorageError):
        return False  # The file is not on this host: in doubt the work is done again.
