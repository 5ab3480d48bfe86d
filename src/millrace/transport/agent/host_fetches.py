"""Fetches ranges from several hosts at once, and ahead of their reader, in threads.

Invariant: ranges are handed out in the order in which they were asked for. An error of a host is
raised in place of its first range that did not arrive, after all ranges before that. When the
reader ends early, no further call begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from millrace.ids import AttemptId, FolderId
from millrace.metrics.process_metrics import FETCH_QUEUE_BYTES, FETCH_QUEUE_PARTITIONS
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.transport.agent.host_queues import HostQueues
from millrace.wakeup import WorkerThread

PartitionRequest = tuple[FolderId, AttemptId, PartitionMeta]
_LOOK_S: Final = 5.0


class ReaderGone(Exception):
    """Ends a fetch whose reader wants no more."""


class Delivery(Protocol):
    """Takes the ranges of one fetch. Both calls raise `ReaderGone`, which ends the fetch."""

    def check(self) -> None:
        """Raise if nobody wants the bytes any more."""

    def deliver(self, position: int, data: pa.Buffer) -> None:
        """Take a range by its position among those asked for; its bytes were found right."""


FetchGroup = Callable[[FolderId, Sequence[PartitionRequest], Delivery], None]
"""Fetches ranges of one folder."""


class HostFetches:
    """One read of many ranges.

    `waited` is told how long the reader waited each time, `queued` how many bytes were asked for
    and not taken yet, when more were.
    """

    def __init__(
        self,
        requests: Iterable[PartitionRequest],
        fetch: FetchGroup,
        waited: Callable[[float], None],
        queued: Callable[[int], None],
        *,
        hosts_at_once: int,
        bytes_max: int,
        ranges_max: int,
    ) -> None:
        self._requests = iter(requests)
        self._fetch, self._hosts_at_once = fetch, hosts_at_once
        self._waited, self._queued = waited, queued
        self._queues = HostQueues(bytes_max=bytes_max, ranges_max=ranges_max)
        self._changed = threading.Condition()
        self._refused: PartitionRequest | None = None
        self._is_all = False
        self._admitted: dict[int, PartitionRequest] = {}
        self._done: dict[int, pa.Buffer | BaseException] = {}
        self._running = 0
        self._is_ended = False

    def buffers(self) -> Iterator[pa.Buffer]:
        """The bytes of all ranges, in order."""
        number = 0
        try:
            while True:
                self._admit()
                if number not in self._admitted:
                    assert self._is_all, "the next range is always admitted"
                    return
                yield self._take(number)
                with self._changed:
                    self._leave(self._admitted.pop(number))
                    self._queues.on_taken(number)
                number += 1
        finally:
            with self._changed:
                self._is_ended = True
                self._done.clear()
                for left in self._admitted.values():
                    self._leave(left)

    def _admit(self) -> None:
        """Queue what there is room for, and begin to fetch it."""
        with self._changed:
            if not self._is_all and self._queues.wants_more():
                self._admit_some()
                self._queued(self._queues.bytes)
            is_only_host = self._is_all and not self._running and self._queues.hosts_ready() == 1
            starting = min(self._queues.hosts_ready(), self._hosts_at_once - self._running)
            if not is_only_host:
                self._running += starting
        if is_only_host:
            self._fetch_next(is_reader=True)  # Nothing is gained by a thread.
        else:
            for _ in range(starting):
                WorkerThread(self._run, "millrace-fetch").start()

    def _admit_some(self) -> None:
        """Queue ranges up to the limit."""
        while True:
            request = self._refused or next(self._requests, None)
            self._refused = None
            if request is None:
                self._is_all = True
                return
            number = self._queues.admit(request[0], request[2].bytes)
            if number is None:
                self._refused = request
                return
            self._admitted[number] = request
            FETCH_QUEUE_BYTES.add(request[2].bytes)
            FETCH_QUEUE_PARTITIONS.add()

    @staticmethod
    def _leave(request: PartitionRequest) -> None:
        """A range is no longer in the queue: it was taken, or its reader has ended."""
        FETCH_QUEUE_BYTES.add(-request[2].bytes)
        FETCH_QUEUE_PARTITIONS.add(-1)

    def _take(self, number: int) -> pa.Buffer:
        """The bytes of a range, once they are there."""
        with self._changed:
            if number not in self._done:
                began = time.monotonic()
                while number not in self._done:
                    self._changed.wait(_LOOK_S)
                self._waited(time.monotonic() - began)
            outcome = self._done.pop(number)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self) -> None:
        """In a thread: fetch from one host after the other, as long as any has ranges waiting."""
        while self._fetch_next(is_reader=False):
            pass

    def _fetch_next(self, *, is_reader: bool) -> bool:
        """Fetch all that waits for one host; False if there is nothing to fetch."""
        with self._changed:
            begun = None if self._is_ended else self._queues.begin()
            if begun is None:
                self._running -= not is_reader
                return False
            folder, numbers = begun
            requests = [self._admitted[number] for number in numbers]
        group = _Group(self, numbers)
        error: BaseException | None = None
        try:
            self._fetch(folder, requests, group)
        except ReaderGone:
            pass
        except BaseException as raised:  # noqa: BLE001 - raised where the reader gets to it
            error = raised
        with self._changed:
            self._queues.on_end(folder)
            if error is not None and not self._is_ended:
                self._done |= dict.fromkeys(set(numbers) - group.delivered, error)
                self._changed.notify_all()
        return True

    def check(self) -> None:
        """Raise if the reader has ended."""
        if self._is_ended:
            raise ReaderGone

    def deliver(self, number: int, data: pa.Buffer) -> None:
        """Take the bytes of a range."""
        with self._changed:
            self.check()
            self._done[number] = data
            self._changed.notify_all()


@dataclass(slots=True)
class _Group:
    """The ranges of one call to a host."""

    read: HostFetches
    numbers: Sequence[int]
    delivered: set[int] = field(default_factory=set)

    def check(self) -> None:
        """See `Delivery.check`."""
        self.read.check()

    def deliver(self, position: int, data: pa.Buffer) -> None:
        """See `Delivery.deliver`."""
        number = self.numbers[position]
        self.read.deliver(number, data)
        self.delivered.add(number)
