"""A decision log in a folder or a bucket: each record a file that is made once.

    log/{number of 20 digits}          a record: linked into place, or put if there is none
    snapshots/{number of 20 digits}    a snapshot

Invariant: a file appears whole, and the first one of a name stays.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from millrace.config import Config
from millrace.errors import BrokerStopped, PeerGone, StorageError
from millrace.faults import fault
from millrace.journal.ledger_log.decision_log import Added, LogSnapshot, Taken
from millrace.storage.objects.object_calls import ObjectRefused
from millrace.storage.store import Store

_DIGITS: Final = 20
_PROBE_S_MAX: Final = 600
"""Longer than the calls of a probe can take."""
_NOT_WRITTEN: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Refusals that come before the file has its name."""


class StoreLog:
    """The log of a workspace's journals, in the workspace."""

    def __init__(self, store: Store, folder: str, config: Config) -> None:
        self._store = store
        self._records = f"{folder}/log"
        self._snapshots = f"{folder}/snapshots"
        self._config = config
        self._probing: Future[None] | None = None

    @property
    def name(self) -> str:
        """See `DecisionLog.name`."""
        return self._store.path(self._records)

    def prepare(self) -> None:
        """See `DecisionLog.prepare`: a server that ignores conditions is refused.

        A bucket is probed while the log is read, and waited for before the first write.
        """
        if self._store.remote:
            pool = ThreadPoolExecutor(1, thread_name_prefix="millrace-probe")
            self._probing = pool.submit(self._store.probe)
            pool.shutdown(wait=False)
            return
        for folder in (self._records, self._snapshots):
            if self._store.make_folder(folder):
                self._store.sync_folders(folder)

    def add(self, number: int, content: bytes) -> Added | Taken:
        """See `DecisionLog.add`. Without an answer the same bytes are sent again for a while."""
        self._await_probe()
        name = _name(self._records, number)
        until = time.monotonic() + self._config.ledger_retry_ms_max / 1000
        pause_s = self._config.ledger_retry_ms / 1000
        is_first = True
        fault("ledger.log.before_add")
        while True:
            try:
                added = self._store.create(name, content, sync=True)
                there = None if added else self._store.read(name)
            except StorageError as error:
                if is_first and _was_refused(error):
                    raise
                raise self._in_doubt(number, error) from error
            except PeerGone as error:
                if time.monotonic() >= until:
                    raise self._in_doubt(number, error) from error
                is_first = False
                time.sleep(pause_s)
                pause_s *= 2
            else:
                fault("ledger.log.after_add")
                return Added() if added or there == content else Taken(there)

    def read(self, number: int) -> bytes | None:
        """See `DecisionLog.read`."""
        return self._store.read(_name(self._records, number))

    def numbers(self, first: int) -> Sequence[int]:
        """See `DecisionLog.numbers`."""
        return _numbers(self._store.names_after(self._records, f"{first - 1:0{_DIGITS}d}"), first)

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
        """See `DecisionLog.read_many`."""
        page = self._config.s3_calls_at_once
        for begin in range(0, len(numbers), page):
            some = numbers[begin : begin + page]
            yield from zip(some, self._store.each(self.read, some), strict=True)

    def put_snapshot(self, snapshot: LogSnapshot) -> None:
        """See `DecisionLog.put_snapshot`."""
        self._await_probe()
        name = _name(self._snapshots, snapshot.number)
        if not self._store.create(name, snapshot.content, sync=True):
            # One that was made before the same records were replayed may be damaged.
            self._store.replace(name, snapshot.content)

    def snapshots(self) -> Sequence[int]:
        """See `DecisionLog.snapshots`."""
        return _numbers(self._store.names(self._snapshots), 0)

    def read_snapshot(self, number: int) -> bytes | None:
        """See `DecisionLog.read_snapshot`."""
        return self._store.read(_name(self._snapshots, number))

    def trim(self, before: int, *, keep: Collection[int]) -> None:
        """See `DecisionLog.trim`."""
        kept = set(keep)
        records = [n for n in _numbers(self._store.names(self._records), 0) if n < before]
        self._store.each(
            lambda n: self._store.remove_file(_name(self._records, n)),
            [n for n in records if n not in kept],
        )
        for number in self.snapshots():
            if number < before:
                self._store.remove_file(_name(self._snapshots, number))
        self._store.remove_drafts(
            self._records,
            changed_before_ms=time.time_ns() // 1_000_000 - self._config.ledger_draft_ms_max,
        )

    def close(self) -> None:
        """See `DecisionLog.close`: nothing stays open."""

    def _await_probe(self) -> None:
        """Raise if the store was found to ignore conditions."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.result(timeout=_PROBE_S_MAX)

    def _in_doubt(self, number: int, error: Exception) -> BrokerStopped:
        return BrokerStopped(
            f"adding record {number} to {self.name} failed\n  found: {error}\n"
            "  whether the last requests were saved is not known\n"
            "  to fix: see that the store can be written, open the journals again and look"
        )


def _name(folder: str, number: int) -> str:
    return f"{folder}/{number:0{_DIGITS}d}"


def _numbers(names: Sequence[str], first: int) -> list[int]:
    """Numbers among names, in order; unfinished files have others."""
    return sorted(
        number
        for name in names
        if len(name) == _DIGITS and name.isdigit() and (number := int(name)) >= first
    )


def _was_refused(error: StorageError) -> bool:
    """Whether the store said no before anything was there."""
    if isinstance(error, ObjectRefused):
        return error.is_certain
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NOT_WRITTEN
