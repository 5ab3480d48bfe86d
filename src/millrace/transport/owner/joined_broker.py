"""The broker that everyone uses: every call goes to whoever owns the journals.

Invariant: it keeps the contract of `millrace.journal.broker.Broker`, as the owner's broker does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, Unpack

import pyarrow as pa

from millrace.journal.broker import Transaction
from millrace.journal.core import row_format
from millrace.journal.core.call_arguments import check_arguments
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Anything,
    Appended,
    Fetched,
    Isolation,
    JournalInfo,
    Lease,
    Missing,
    MovedJournals,
    Position,
    ProducerProgress,
    Publish,
    Published,
    SegmentFile,
    Truncated,
    Watched,
)
from millrace.journal.producer import Producer
from millrace.journal.row_files import write_file
from millrace.reads.live.follow_requests import FollowRange, wanted
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.streams.follow_client import follow
from millrace.wakeup import WakeUp, is_main

Found = TypeVar("Found")
_NO_JOURNAL: Final = "//"
"""A prefix that no name has."""
Labels = Mapping[str, str | Sequence[str]]


class JoinedBroker:
    """Journals of an owner. Every method may be called from any thread.

    Example:
        >>> journals = ws.journals
        >>> journals.read("orders", 0).num_rows
        3
    """

    def __init__(self, caller: OwnerCaller) -> None:
        """Use `Workspace.journals` or `join_journals`."""
        self._caller = caller
        self._config = caller.config

    @property
    def epoch(self) -> int:
        """The owner's epoch: it rises whenever another process takes the journals over.

        Example:
            >>> ws.journals.epoch >= 1
            True
        """
        return self._caller.link().epoch

    @property
    def address(self) -> str:
        """Where the owner answers now.

        Example:
            >>> ws.journals.address
            'grpc...://127.0.0.1:...'
        """
        return self._caller.link().address

    # Journals.
    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """See `Broker.create`."""
        made: JournalInfo = self._ask("create", name=name, schema=schema, labels=labels)
        return made

    def create_many(
        self, names: Sequence[str], schema: pa.Schema, labels: Sequence[Mapping[str, str]] = ()
    ) -> tuple[JournalInfo, ...]:
        """See `Broker.create_many`."""
        made: tuple[JournalInfo, ...] = self._ask(
            "create_many", names=names, schema=schema, labels=labels
        )
        return made

    def get(self, name: str) -> JournalInfo:
        """See `Broker.get`."""
        found: JournalInfo = self._ask("get", name=name)
        return found

    def watch(
        self,
        seen: int,
        *,
        prefix: str = "",
        labels: Labels | None = None,
        timeout_s: float = 0,
        stop: WakeUp | None = None,
    ) -> Watched:
        """See `Broker.watch`."""

        def ask(piece_s: float, under: str) -> Watched:
            found: Watched = self._ask_waiting(
                "watch", piece_s, seen=seen, prefix=under, labels=labels, stop=stop
            )
            return found

        if timeout_s > 0:
            # No journals are sent while nothing changes: there may be very many.
            self._wait(
                lambda piece_s: ask(piece_s, _NO_JOURNAL),
                lambda found: found.version != seen,
                timeout_s,
                stop,
            )
        return ask(0, prefix)

    def wait_for_rows(self, after: Mapping[str, int], *, timeout_s: float) -> bool:
        """See `Broker.wait_for_rows`."""

        def ask(piece_s: float) -> bool:
            return bool(self._ask_waiting("wait_for_rows", piece_s, after=after))

        return self._wait(ask, lambda found: found, timeout_s)

    def moved(self, since: int, *, timeout_s: float, stop: WakeUp | None = None) -> MovedJournals:
        """See `Broker.moved`. Another owner does not know the version of the last one."""

        def ask(piece_s: float) -> MovedJournals:
            found: MovedJournals = self._ask_waiting("moved", piece_s, since=since, stop=stop)
            return found

        return self._wait(ask, lambda found: found.journals != (), timeout_s, stop)

    def delete(self, name: str) -> None:
        """See `Broker.delete`."""
        self._ask("delete", name=name)

    # Writing.
    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """See `Broker.producer`."""
        most = self._config.journal_transaction_journals_max
        return Producer(self, name, intents=intents, journals_max=most)

    def producer_id(self, name: str) -> ProducerId:
        """See `Broker.producer_id`."""
        return ProducerId(self._ask("producer_id", name=name))

    def standing(self, producer: ProducerId) -> ProducerProgress:
        """See `Broker.standing`."""
        found: ProducerProgress = self._ask("standing", producer=producer)
        return found

    def append(
        self,
        name: str,
        rows: pa.RecordBatch | pa.Table,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: int | None = None,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """See `Broker.append`."""
        done: Appended = self._ask(
            "append",
            name=name,
            rows=rows,
            keys=keys,
            timestamps=timestamps,
            expected=expected,
            producer=producer,
            sequence=sequence,
        )
        return done

    def append_stamped(
        self, name: str, rows: pa.RecordBatch | pa.Table, *, lease: Lease | None = None
    ) -> Appended:
        """See `Broker.append_stamped`."""
        done: Appended = self._ask("append_stamped", name=name, rows=rows, lease=lease)
        return done

    def publish(self, request: Publish) -> Published:
        """See `Broker.publish`."""
        done: Published = self._ask("publish", request=request)
        return done

    def transaction(
        self,
        lease: Lease | None = None,
        *,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Transaction:
        """See `Broker.transaction`."""
        return Transaction(self, lease, producer, sequence)

    def adopt(
        self, files: Mapping[str, Sequence[SegmentFile]], *, lease: Lease | None = None
    ) -> Published:
        """See `Broker.adopt`."""
        done: Published = self._ask("adopt", files=files, lease=lease)
        return done

    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`: the owner's, which may lie on another host."""
        return str(self._ask("adoption_folder"))

    def store_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> SegmentFile:
        """See `Broker.store_file`: written in place where the owner's folder is this one's, too.

        Elsewhere it is written to a temporary file and sent, so that a cut costs no row.
        """
        kept = row_format.journal_schema(schema)
        folder = self._caller.shared_folder()
        if folder is not None:
            path = os.path.join(folder, f"{secrets.token_hex(16)}.ipc")
            try:
                return write_file(path, batches, kept, config=self._config)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        with tempfile.TemporaryDirectory(prefix="millrace-") as temporary:
            path = os.path.join(temporary, "file.ipc")
            file = write_file(path, batches, kept, config=self._config, sync=False)
            return self._caller.store(path, file)

    # Reading.
    def read(
        self,
        name: str,
        offset: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """See `Broker.read`."""
        found: Fetched = self._ask(
            "read",
            name=name,
            offset=offset,
            rows_max=rows_max,
            bytes_max=bytes_max or self._config.owner_read_bytes_max,
            isolation=isolation,
        )
        return found

    def read_many(
        self,
        offsets: Mapping[str, int],
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        bytes_each_max: int | None = None,
        isolation: Isolation = "committed",
        missing: Missing = "raise",
    ) -> dict[str, Fetched]:
        """See `Broker.read_many`."""
        found: dict[str, Fetched] = self._ask(
            "read_many",
            offsets=offsets,
            rows_max=rows_max,
            bytes_max=bytes_max or self._config.owner_read_bytes_max,
            bytes_each_max=bytes_each_max,
            isolation=isolation,
            missing=missing,
        )
        return found

    def follow(
        self, prefix: str, *, timeout_s: float | None = None, **which: Unpack[FollowRange]
    ) -> Iterator[Fetched]:
        """Committed rows as they come, of a journal or of all under a prefix, later ones, too.

        `FollowRange` lists what can be asked for. Ends when no row came for `timeout_s`, if given.

        Example:
            >>> for found in ws.journals.follow("orders", to_offset="end"):
            ...     print(found.journal, found.rows()["amount"].to_pylist())
            orders [10, 20, 30]
        """
        return follow(self._caller, wanted(prefix, **which), timeout_s=timeout_s)

    def start_offset(self, name: str) -> Offset:
        """See `Broker.start_offset`."""
        return Offset(self._ask("start_offset", name=name))

    def start_offsets(self, names: Sequence[str]) -> dict[str, Offset]:
        """See `Broker.start_offsets`."""
        found: dict[str, Offset] = self._ask("start_offsets", names=names)
        return found

    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """See `Broker.end_offset`."""
        return Offset(self._ask("end_offset", name=name, isolation=isolation))

    # Groups.
    def commit(
        self, group: str, name: str, offset: int, *, expected: int | Anything | None
    ) -> None:
        """See `Broker.commit`."""
        self._ask("commit", group=group, name=name, offset=offset, expected=expected)

    def committed(self, group: str, name: str) -> Offset | None:
        """See `Broker.committed`."""
        found: Offset | None = self._ask("committed", group=group, name=name)
        return found

    def min_committed(self, name: str) -> Offset | None:
        """See `Broker.min_committed`."""
        found: Offset | None = self._ask("min_committed", name=name)
        return found

    def backlog(self, group: str, name: str) -> int:
        """See `Broker.backlog`."""
        return int(self._ask("backlog", group=group, name=name))

    def positions(self, wanted: Sequence[tuple[str, str]]) -> tuple[Position, ...]:
        """See `Broker.positions`."""
        found: tuple[Position, ...] = self._ask("positions", wanted=wanted)
        return found

    def truncate_before(self, name: str, offset: int, *, force: bool = False) -> Truncated:
        """See `Broker.truncate_before`."""
        done: Truncated = self._ask("truncate_before", name=name, offset=offset, force=force)
        return done

    def truncate_committed(self, name: str) -> Truncated:
        """See `Broker.truncate_committed`."""
        done: Truncated = self._ask("truncate_committed", name=name)
        return done

    # Leases.
    def acquire(self, name: str, holder: str, *, lease_ms: int | None = None) -> Lease:
        """See `Broker.acquire`."""
        lease: Lease = self._ask("acquire", name=name, holder=holder, lease_ms=lease_ms)
        return lease

    def renew(self, lease: Lease, *, lease_ms: int | None = None) -> Lease:
        """See `Broker.renew`."""
        renewed: Lease = self._ask("renew", lease=lease, lease_ms=lease_ms)
        return renewed

    def release(self, lease: Lease) -> None:
        """See `Broker.release`."""
        self._ask("release", lease=lease)

    def fence(self, name: str) -> int:
        """See `Broker.fence`."""
        return int(self._ask("fence", name=name))

    def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """See `Broker.leases`."""
        found: tuple[Lease, ...] = self._ask("leases", prefix=prefix)
        return found

    # Housekeeping.
    def tidy(self) -> None:
        """See `Broker.tidy`."""
        self._ask("tidy")

    def close(self) -> None:
        """See `Broker.close`: the owner goes on, unless it lives in this workspace's process.

        Example:
            >>> other = mr.open("./other", create=True)
            >>> other.journals.list()
            ()
            >>> other.journals.close()
        """
        self._caller.close()

    # Inside.
    def _ask(self, call: str, /, **args: Any) -> Any:  # noqa: ANN401 - the methods above name the types
        check_arguments(call, args)
        return self._caller.call(call, args)

    def _ask_waiting(
        self,
        call: str,
        piece_s: float,
        /,
        *,
        stop: WakeUp | None = None,
        **args: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - the methods above name the types
        check_arguments(call, args)
        args["timeout_s"] = piece_s
        if stop is not None:
            args["stop"] = stop  # For an owner in this process; it is not sent to another.
        return self._caller.call(call, args, wait_ms=int(piece_s * 1000), stop=stop)

    def _wait(
        self,
        ask: Callable[[float], Found],
        is_enough: Callable[[Found], bool],
        timeout_s: float,
        stop: WakeUp | None = None,
    ) -> Found:
        """Wait at the owner, a piece at a time, so that a lost one and a stop are noticed."""
        most_s = self._config.owner_wait_ms_max / 1000
        if stop is not None or is_main():
            most_s = min(most_s, self._config.owner_interrupt_ms / 1000)
        until = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            asked_at, piece_s = time.monotonic(), max(0.0, min(left_s, most_s))
            found = ask(piece_s)
            left_s = until - time.monotonic()
            if is_enough(found) or left_s <= 0 or (stop is not None and stop.is_stopped):
                return found
            if time.monotonic() - asked_at < piece_s / 2:
                # The owner has too many who wait; it answered at once.
                time.sleep(min(left_s, self._config.owner_backoff_ms / 1000))

    # Last, since it hides the built-in name from what follows.
    def list(self, prefix: str = "", labels: Labels | None = None) -> tuple[JournalInfo, ...]:
        """See `Broker.list`."""
        found: tuple[JournalInfo, ...] = self._ask("list", prefix=prefix, labels=labels)
        return found
