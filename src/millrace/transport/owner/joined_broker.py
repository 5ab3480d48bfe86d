"""The broker that every process uses: each call goes to the owner of the journals.

The calls are those of the contract `Broker`; the methods that only pass one on are derived from it.

Invariant: it keeps that contract, as the owner's broker does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self, Unpack

import pyarrow as pa

from millrace.errors import Conflict, WorkspaceUnknown
from millrace.journal.broker import Broker
from millrace.journal.core import row_format
from millrace.journal.core.call_arguments import check_arguments
from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import NO_JOURNAL
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Append,
    Appended,
    Fetched,
    Isolation,
    Lease,
    MovedJournals,
    Publish,
    Published,
    Rows,
    SegmentFile,
    Watched,
    appended_to,
)
from millrace.journal.producer import Producer
from millrace.journal.row_files import write_file
from millrace.journal.transaction import Transaction
from millrace.limits import MIB
from millrace.reads.live.follow_requests import FollowRange, follow_request
from millrace.transport.owner.broker_calls import CALLS, BrokerCall
from millrace.transport.owner.direct_bytes import DirectBytes
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.streams.follow_client import follow
from millrace.transport.streams.host_rings import HostRings
from millrace.wakeup import WakeUp, is_main

OWNER_READ_BYTES_MAX: Final = 4 * MIB
"""About how many bytes a read through the owner returns, unless the caller says otherwise."""

_EPOCH_TRIES: Final = 100
"""How often a lease may change between a look at its epoch and the call, before that is told."""


class JoinedBroker(Broker):
    """Journals of an owner. Every method may be called from any thread."""

    def __init__(self, caller: OwnerCaller) -> None:
        """Use `JoinedBroker.of`."""
        self._caller = caller
        self._config = caller.config
        self._rings = HostRings(caller, self)
        self._direct = DirectBytes(caller, self)

    @classmethod
    def of(cls, caller: OwnerCaller) -> Self:
        """The journals of the owner that `caller` finds."""
        return cls(caller)

    @property
    def epoch(self) -> int:
        """The owner's epoch: it rises whenever another process takes the journals over."""
        return self._caller.link().epoch

    @property
    def address(self) -> str:
        """Where the owner answers now."""
        return self._caller.link().address

    def watch(
        self,
        seen: int,
        *,
        prefix: str = "",
        labels: Mapping[str, str | Sequence[str]] | None = None,
        timeout_s: float = 0,
        stop: WakeUp | None = None,
    ) -> Watched:
        """See `Broker.watch`."""

        def arguments(under: str) -> dict[str, Any]:
            return {"seen": seen, "prefix": under, "labels": labels}

        if timeout_s > 0:
            # No journals are sent while nothing changes: there may be very many.
            self._wait(
                CALLS["watch"],
                arguments(NO_JOURNAL),
                lambda watched: bool(watched.version != seen),
                timeout_s,
                stop,
            )
        watched: Watched = self._ask_waiting(CALLS["watch"], arguments(prefix), 0, stop)
        return watched

    def wait_for_rows(self, after: Mapping[str, int], *, timeout_s: float) -> bool:
        """See `Broker.wait_for_rows`."""
        return bool(self._wait(CALLS["wait_for_rows"], {"after": after}, bool, timeout_s))

    def moved(self, since: int, *, timeout_s: float, stop: WakeUp | None = None) -> MovedJournals:
        """See `Broker.moved`. Another owner does not know the version of the last one."""
        moved: MovedJournals = self._wait(
            CALLS["moved"],
            {"since": since},
            lambda moved: bool(moved.journals != ()),
            timeout_s,
            stop,
        )
        return moved

    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """See `Broker.producer`."""
        most = self._config.journal_transaction_journals_max
        return Producer(self, name, intents=intents, journals_max=most)

    def transaction(
        self,
        lease: Lease | None = None,
        *,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Transaction:
        """See `Broker.transaction`."""
        return Transaction(self, lease, producer, sequence)

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
        given = {"rows_max": rows_max, "bytes_max": bytes_max, "isolation": isolation}
        check_arguments("read", {"name": name, "offset": offset, **given})
        request = ReadRequest(
            offsets={name: offset}, rows_max=rows_max, bytes_max=bytes_max, isolation=isolation
        )
        fetched = self._direct.read(request)
        if fetched is None:
            fetched = self._ask(CALLS["read"], {"name": name, "offset": offset, **given})
        return fetched

    def read_many(self, request: ReadRequest) -> ManyRows:
        """See `Broker.read_many`."""
        check_arguments("read_many", {"request": request})
        fetched = self._direct.read_many(request)
        if fetched is None:
            limited = replace(request, bytes_max=request.bytes_max or OWNER_READ_BYTES_MAX)
            fetched = self._ask(CALLS["read_many"], {"request": limited})
        return fetched

    def append(
        self,
        name: str,
        rows: Rows,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: int | None = None,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """See `Broker.append`."""
        arguments = CALLS["append"].arguments(
            (name, rows),
            {
                "keys": keys,
                "timestamps": timestamps,
                "expected": expected,
                "producer": producer,
                "sequence": sequence,
            },
        )
        check_arguments("append", arguments)
        part = Append(journal=name, rows=rows, keys=keys, timestamps=timestamps, expected=expected)
        request = Publish(parts=(part,), producer=producer, sequence=sequence)
        published = self._direct.publish(request)
        if published is None:
            appended: Appended = self._ask(CALLS["append"], arguments)
            return appended
        return appended_to(published, name, sequence)

    def append_stamped(
        self,
        name: str,
        rows: Rows,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """See `Broker.append_stamped`."""
        arguments = {"name": name, "rows": rows, "lease": lease, "call": call}
        check_arguments("append_stamped", arguments)
        appended = self._direct.append_stamped(name, rows, lease, call)
        if appended is None:
            appended = self._ask(CALLS["append_stamped"], arguments)
        return appended

    def acquire(
        self, name: str, holder: str, *, lease_ms: int | None = None, after: int | None = None
    ) -> Lease:
        """See `Broker.acquire`. A try of this call that comes late takes the lease from nobody."""
        given = {"name": name, "holder": holder, "lease_ms": lease_ms}
        lease: Lease = self._ask_in_order(CALLS["acquire"], given, after)
        return lease

    def fence(self, name: str, *, after: int | None = None) -> int:
        """See `Broker.fence`. A try of this call that comes late ends no newer epoch."""
        epoch: int = self._ask_in_order(CALLS["fence"], {"name": name}, after)
        return epoch

    def publish(self, request: Publish) -> Published:
        """See `Broker.publish`: large rows are written into the workspace where it is seen."""
        check_arguments("publish", {"request": request})
        published = self._direct.publish(request)
        if published is None:
            published = self._ask(CALLS["publish"], {"request": request})
        return published

    def store_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> SegmentFile:
        """See `Broker.store_file`: written in place where the owner's folder is this one's, too.

        Elsewhere it is written to a temporary file and put into the workspace's bucket, or sent to
        the owner, so that a cut costs no row.
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
            path = os.path.join(temporary, f"{secrets.token_hex(16)}.ipc")
            file = write_file(path, batches, kept, config=self._config, sync=False)
            return self._direct.upload(path, file) or self._caller.store(path, file)

    def follow(
        self, prefix: str, *, timeout_s: float | None = None, **which: Unpack[FollowRange]
    ) -> Iterator[Fetched]:
        """Committed rows as they come, of a journal or of all under a prefix, later ones, too.

        `FollowRange` lists what can be asked for. Ends when no row came for `timeout_s`, if given.
        """
        at_owner = self._config.live_rings == "owner"
        opener = self._caller if at_owner else self._rings
        return follow(opener, follow_request(prefix, **which), timeout_s=timeout_s)

    def close(self) -> None:
        """See `Broker.close`: the owner goes on, unless it lives in this workspace's process."""
        self._rings.close()
        self._direct.close()
        self._caller.close()

    # Inside.
    def _ask(self, call: BrokerCall, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - the contract types it
        check_arguments(call.name, arguments)
        if "bytes_max" in arguments:
            arguments["bytes_max"] = arguments["bytes_max"] or OWNER_READ_BYTES_MAX
        return self._caller.call(call, arguments)

    def _ask_in_order(self, call: BrokerCall, given: dict[str, Any], after: int | None) -> Any:  # noqa: ANN401 - the contract types it
        """Ask for a new epoch of a lease; a try that comes after another change does nothing."""
        check_arguments(call.name, given)
        tries_left = _EPOCH_TRIES if after is None else 1
        while True:
            tries_left -= 1
            expected = self._epoch_of(given["name"]) if after is None else after
            try:
                return self._ask(call, {**given, "after": expected})
            except Conflict:
                # Somebody else, or an earlier try of this call whose answer was lost.
                if not tries_left:
                    raise

    def _epoch_of(self, lease: str) -> int:
        try:
            return self.lease_epoch(lease)
        except WorkspaceUnknown:
            return 0  # The call that takes it makes the workspace.

    def _ask_waiting(
        self,
        call: BrokerCall,
        arguments: dict[str, Any],
        timeout_s: float,
        stop: WakeUp | None,
    ) -> Any:  # noqa: ANN401 - the contract types it
        check_arguments(call.name, arguments)
        arguments = {**arguments, "timeout_s": timeout_s}
        if stop is not None:
            arguments["stop"] = stop  # For an owner in this process; it is not sent to another.
        return self._caller.call(call, arguments, wait_ms=int(timeout_s * 1000), stop=stop)

    def _wait(
        self,
        call: BrokerCall,
        arguments: dict[str, Any],
        is_enough: Callable[[Any], bool],
        timeout_s: float,
        stop: WakeUp | None = None,
    ) -> Any:  # noqa: ANN401 - the contract types it
        """Wait at the owner for a short time, over and over, to notice a lost owner and a stop."""
        most_s = self._config.owner_wait_ms_max / 1000
        if stop is not None or is_main():
            most_s = min(most_s, self._config.owner_interrupt_ms / 1000)
        until = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            asked_at, wait_s = time.monotonic(), max(0.0, min(left_s, most_s))
            answer = self._ask_waiting(call, arguments, wait_s, stop)
            left_s = until - time.monotonic()
            if is_enough(answer) or left_s <= 0 or (stop is not None and stop.is_stopped):
                return answer
            if time.monotonic() - asked_at < wait_s / 2:
                # The owner answered at once because too many clients wait there.
                time.sleep(min(left_s, self._config.owner_backoff_ms / 1000))


def _passed_on(call: BrokerCall) -> Callable[..., Any]:
    """A method that asks the owner."""

    def ask(self: JoinedBroker, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - the contract types it
        return self._ask(call, call.arguments(args, named))

    ask.__name__ = call.name
    ask.__doc__ = f"See `Broker.{call.name}`."
    return ask


for _call in CALLS.values():
    if _call.name not in vars(JoinedBroker):
        setattr(JoinedBroker, _call.name, _passed_on(_call))
