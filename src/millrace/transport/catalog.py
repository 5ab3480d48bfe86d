"""What an agent knows of a folder: map outputs by attempt, and their bytes.

Invariant: an attempt is answered only while its index is on disk. What the catalog remembers is
checked against the disk each time, so attempts that appear or go are noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.config import Config
from millrace.errors import FormatError, StorageError
from millrace.ids import Attempt, AttemptId, Latest, MapTaskId
from millrace.scan.source import has_content
from millrace.shuffle import layout, reader, reuse
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.registry import Registry
from millrace.shuffle.store import LocalStore
from millrace.transport.wire import Search, Ticket, WhichAttempt


@dataclass(slots=True)
class Catalog:
    """The map outputs of one folder."""

    store: LocalStore
    config: Config
    registry: Registry = field(default_factory=Registry)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def index(self, which: WhichAttempt) -> MapTaskIndex:
        """The index of just this attempt, or of the latest."""
        task, attempt = which.task, which.attempt
        if not isinstance(attempt, Latest):
            known = self._known(AttemptId(task, attempt))
            if known is not None:
                return known
        found = self._read(task, attempt)
        with self._lock:
            self._remember(task, found)
            return self.registry.find(task, attempt).index

    def chunks(self, ticket: Ticket) -> Iterator[pa.Buffer]:
        """The bytes that a ticket asks for, range after range."""
        for part in ticket.ranges:
            index = self.index(part.which)
            meta = reader.partition_meta(index, part.partition)
            yield from reader.fetch_chunks(
                self.store, index.id, meta, chunk_bytes=ticket.chunk_bytes, start=part.start
            )

    def find(self, search: Search) -> Iterator[MapTaskIndex | None]:
        """For each piece of work an attempt that did it, or None."""
        for made_from in search.made_from:
            yield reuse.find(
                self.store, made_from, has_content=_can_see_content, verify=search.verify
            )

    def _known(self, attempt: AttemptId) -> MapTaskIndex | None:
        with self._lock:
            known = self.registry.tasks.get(attempt.task, {}).get(attempt.attempt)
        return known.index if known is not None and self._has_index(attempt) else None

    def _read(self, task: MapTaskId, attempt: Attempt | Latest) -> list[MapTaskIndex]:
        """The attempt asked for; if it is not there, all there are, for the error to name."""
        if not isinstance(attempt, Latest):
            index = reader.find_index(self.store, AttemptId(task, attempt))
            if index is not None:
                return [index]
        numbers = self.store.numbers(layout.task_folder(task))
        found = (self._valid_index(AttemptId(task, Attempt(number))) for number in numbers)
        return [index for index in found if index is not None]

    def _remember(self, task: MapTaskId, found: list[MapTaskIndex]) -> None:
        if sum(map(len, self.registry.tasks.values())) >= self.config.agent_indexes_max:
            self.registry.tasks.clear()
        self.registry.tasks.pop(task, None)
        for index in found:
            self.registry.register(index)

    def _valid_index(self, attempt: AttemptId) -> MapTaskIndex | None:
        try:
            return reader.find_index(self.store, attempt)
        except FormatError:
            return None  # Not valid, so for whoever asks for the latest it does not exist.

    def _has_index(self, attempt: AttemptId) -> bool:
        folder = layout.attempt_folder(attempt)
        names = (layout.INDEX_BIN, layout.INDEX_JSON)
        return any(self.store.exists(f"{folder}/{name}") for name in names)


def _can_see_content(recent: Mapping[str, str]) -> bool:
    try:
        return has_content(recent)
    except (OSError, StorageError):
        return False  # The file is not on this host: in doubt the work is done again.
