"""Rings of live reads with the followers of a host, not with the owner of the journals.

One process of the host has the rings: the one that holds a lock in a folder of the host. It reads
journals by itself, once for all followers of the host, and serves those in other processes over
Flight. The lock dies with its process, and the next follower that is cut off takes it.

Invariant: each stream begins where the last stream of its follower ended, whichever process has the
rings.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import ExitStack
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import OwnerUnreachable, UserError
from millrace.journal.broker import Broker
from millrace.reads.live.follow_requests import FollowRequest, FollowStarted, Message
from millrace.reads.live.follower import messages
from millrace.reads.live.live_reads import LiveClosed, LiveReads
from millrace.storage import documents, modes
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_endpoint import locked
from millrace.transport.flight.byte_batches import BYTES
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.flight.guarded_server import Admission, GuardedServer, ListenAddress
from millrace.transport.flight.tls import own_certificate
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.owner.owner_links import FlightLink, OwnerLink
from millrace.transport.owner.owner_server import WORKSPACE_HEADER, request_limit
from millrace.transport.streams.follow_server import LiveStreams
from millrace.wakeup import WakeUp, WorkerThread, still_running, within

_LOCK_FILE: Final = "rings.lock"
_ADDRESS_FILE: Final = "rings.json"
_LOOPBACK: Final = "127.0.0.1"
_RETRY_S: Final = 0.05
_TICK_S: Final = 1.0

StreamStart = tuple[OwnerLink | None, FollowStarted, Generator[Message]]


class HostRings:
    """Opens streams for followers of this process, at the rings of this host.

    A process that owns the journals follows its own rings: they are those of the whole workspace.
    """

    def __init__(self, caller: OwnerCaller, broker: Broker) -> None:
        self.config = caller.config
        self._caller = caller
        self._broker = broker
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._hosting: RingHost | None = None

    def follow(self, request: FollowRequest) -> StreamStart:
        """See `OwnerCaller.follow`."""
        deadline = time.monotonic() + ms(self.config.owner_timeout) / 1000
        reason = "no process of this host has the rings"
        while time.monotonic() < deadline:
            link = self._caller.link()
            if not isinstance(link, FlightLink) or link.where.workspace_id is None:
                return self._caller.follow(request)
            folder = rings_folder(link.where.workspace_id)
            hosting = self._host(folder, link.where)
            try:
                if hosting is not None:
                    return _begun(None, hosting.follow(request))
                address = documents.hint(folder.read(_ADDRESS_FILE), documents.AddressHint)
                if address is not None:
                    beside = link.beside(address.address)
                    return _begun(beside, beside.follow(request))
            except CallCut as cut:  # Its process has just ended: the next one takes the lock.
                reason = str(cut)
            time.sleep(_RETRY_S)
        raise OwnerUnreachable(
            f"the rings of this host do not answer: {request.prefix!r} is to be followed\n"
            f"  found: {reason}\n  to fix: follow again, or set Config.live_rings to 'owner'"
        )

    def drop(self, link: OwnerLink | None) -> None:
        """See `OwnerCaller.drop`."""
        if isinstance(link, FlightLink):
            link.close()

    def back_off(self, cuts: int) -> None:
        """See `OwnerCaller.back_off`."""
        self._caller.back_off(cuts)

    def close(self) -> None:
        """Give the rings of the host up, if this process has them."""
        with self._lock:
            hosting, self._hosting = self._hosting, None
        if hosting is not None and self._pid == os.getpid():
            hosting.close()

    def _host(self, folder: LocalStore, where: JournalAddress) -> RingHost | None:
        """The rings, if this process has them or takes them now."""
        with self._lock:
            if self._pid != os.getpid():  # A fork has neither the server nor the lock.
                self._pid, self._hosting = os.getpid(), None
            if self._hosting is None:
                self._hosting = RingHost.take(folder, self._broker, where, self.config)
            return self._hosting


class RingHost:
    """The rings of a host, served by this process until it is closed."""

    def __init__(
        self, folder: LocalStore, broker: Broker, where: JournalAddress, config: Config
    ) -> None:
        """Use `RingHost.take`."""
        self.live = LiveReads(broker, config)
        self._config = config
        self._folder = folder
        self._server = _RingServer(self.live, where, config)
        self._ticking = WakeUp()
        self._ticker = WorkerThread(self._tick, "live-rings")
        self._ticker.start()
        self._held = ExitStack()
        folder.replace(_ADDRESS_FILE, documents.AddressHint(self._server.address).to_json())

    @classmethod
    def take(
        cls, folder: LocalStore, broker: Broker, where: JournalAddress, config: Config
    ) -> RingHost | None:
        """The rings of this host; None if another process has them."""
        with ExitStack() as held:
            if not held.enter_context(locked(folder, _LOCK_FILE, wait_ms=0)):
                return None
            made = cls(folder, broker, where, config)
            made._held = held.pop_all()
            _hosts.add(made)
            return made

    def follow(self, request: FollowRequest) -> Generator[Message]:
        """The messages for a follower of this process."""
        try:
            yield from messages(self.live, request)
        except LiveClosed as error:
            raise CallCut("the rings in this process were closed", may_be_done=False) from error

    def close(self) -> None:
        """End all streams, and leave the rings to the next process."""
        self.live.close()
        self._ticking.stop()
        self._folder.remove_file(_ADDRESS_FILE)
        self.let_go()
        within(self._server.shutdown, self._config.owner_stop_ms_max, "live-rings-end")
        still_running([self._ticker], self._config.owner_stop_ms_max)

    def let_go(self) -> None:
        """Close the lock's file in this process; a fork's copy of it would keep the lock."""
        self._held.close()

    def _tick(self) -> None:
        while self._ticking.sleep(_TICK_S):
            self.live.tick()


_hosts: Final[weakref.WeakSet[RingHost]] = weakref.WeakSet()


def _forked() -> None:
    for host in list(_hosts):
        host.let_go()
    _hosts.clear()


os.register_at_fork(after_in_child=_forked)


class _RingServer(GuardedServer):
    """Serves the followers of other processes of this host."""

    def __init__(self, live: LiveReads, where: JournalAddress, config: Config) -> None:
        assert where.workspace_id is not None
        super().__init__(
            "the rings of a host",
            ListenAddress(host=_LOOPBACK, certificate=own_certificate(os.environ)),
            Admission(
                where.token,
                "no such workspace here, or not its token",
                required={WORKSPACE_HEADER: where.workspace_id},
            ),
            config=config,
            limit=request_limit(config),
        )
        self._streams = LiveStreams(live)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send a follower its rows."""
        rows = self._streams.stream(context, pa.py_buffer(ticket.ticket))
        return fl.GeneratorStream(BYTES, rows)


def rings_folder(workspace_id: str) -> LocalStore:
    """The folder in which processes of this host and user find the rings of a workspace."""
    parent = os.environ.get("MILLRACE_FOLDER") or os.path.join(
        tempfile.gettempdir(), f"millrace-{os.getuid()}"
    )
    path = os.path.join(parent, workspace_id)
    modes.make_folders(path)
    status = os.stat(path)
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{path} is not this user's alone: others could send its followers rows\n"
            "  to fix: remove it, or set MILLRACE_FOLDER to a folder of this user"
        )
    return LocalStore(path)


def _begun(link: OwnerLink | None, stream: Generator[Message]) -> StreamStart:
    opened = next(stream, None)
    if not isinstance(opened, FollowStarted):
        stream.close()
        raise CallCut("the stream ended before it began", may_be_done=False)
    return link, opened, stream
