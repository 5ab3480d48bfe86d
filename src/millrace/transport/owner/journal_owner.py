"""The owner of a workspace's journals: it opens them, serves them, and publishes its address.

Invariant: one process at a time is the owner. A lock decides that, which ends with its process. The
owner publishes its address once it answers, and removes it before it gives up the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from millrace.config import Config
from millrace.errors import AlreadyOwned, BrokerStopped, MillraceError, WorkspaceUnknown
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.embedded import folder_lock
from millrace.metrics.process_metrics import TAKEOVERS
from millrace.metrics.process_reports import begin_report, end_report
from millrace.reads.live.live_reads import LiveReads
from millrace.storage.store import Store, storage_errors
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.transport.agent.agent_launch import LOOPBACK
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.transport.flight.tls import Certificate
from millrace.transport.owner import owner_endpoint
from millrace.transport.owner.log_ahead import LogAhead
from millrace.transport.owner.owner_endpoint import OwnerEndpoint
from millrace.transport.owner.owner_life import (
    LifeWatch,
    LogTakeover,
    OwnerLife,
    lease_s,
    read_sign,
)
from millrace.transport.owner.owner_server import OwnerIdentity, OwnerServer
from millrace.wakeup import WakeUp, WorkerThread, still_running, within

OWNER_TIDY_MS_MAX: Final = 300_000
"""The owner tidies at least this often, also when it is never idle."""

_TICKS_PER_IDLE: Final = 4
_LOOK_S: Final = 1.0
"""How often the owner looks whether its workspace is there."""
_HOME_S_MAX: Final = 600
"""Longer than the calls for a workspace's name can take."""
_log: Final = logging.getLogger(__name__)


OwnerUpkeep = Callable[[Broker, LiveReads, WakeUp], None]
"""Looks after a workspace: with the owner's broker, its open readers, and what stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedWorkspace:
    """A workspace whose journals are to be owned, and how to serve them."""

    path: str
    workspace_id: str
    token: str = field(repr=False)
    kind: str
    """The broker, as clients know it."""
    open_broker: Callable[[], Broker]
    config: Config
    takes: Callable[[str], bool] = lambda _kind: True
    """Whether the broker of another owner will do."""
    host: str = LOOPBACK
    """The address for clients; the owner listens on it too, unless `listen` is given."""
    listen: str | None = None
    port: int = 0
    certificate: Certificate | None = None
    joins_only: bool = False
    """Never become the owner: no client could reach this process."""
    takeover: LogTakeover | None = None
    """Opens journals whose log decides who owns them."""
    watch: LifeWatch = field(default_factory=lambda: LifeWatch(Config()))
    ahead: LogAhead = field(default_factory=LogAhead)
    """The log of an owner that is silent, which is loaded while it is watched."""
    upkeep: OwnerUpkeep | None = None
    """Called now and then in a thread of its own, to remove what is no longer kept."""


class Owner:
    """Holds and serves the journals of a workspace. Made by `Owner.open`."""

    def __init__(
        self, workspace: OwnedWorkspace, broker: Broker, lock: int | None, home: WorkspaceHome
    ) -> None:
        """Use `Owner.open`."""
        self.workspace = workspace
        self.broker = broker
        self.epoch = int(getattr(broker, "epoch", None) or time.time_ns() // 1_000_000)
        self.pid = os.getpid()
        self.ended = threading.Event()
        """Set when it no longer owns: closed, or its broker writes no more."""
        self._lock = lock
        self._ending = threading.Lock()
        self._stop = WakeUp()
        self._keeper = WorkerThread(self._keep, "millrace-owner")
        self._upkeep = WorkerThread(self._look_after, "millrace-retention")
        identity = OwnerIdentity(
            workspace_id=workspace.workspace_id,
            epoch=self.epoch,
            instance=secrets.token_hex(16),
            token=workspace.token,
        )
        self._store = store_at(workspace.path, workspace.config)
        self._home = home
        self._is_there = self._home.is_there()
        self._life: OwnerLife | None = None
        if workspace.takeover is not None:
            life = (self._store, broker, identity.instance, workspace.config, self._stop)
            self._life = OwnerLife(*life, self._restore_address)
        self.server = OwnerServer(
            ListenAddress(
                host=workspace.listen or workspace.host,
                port=workspace.port,
                certificate=workspace.certificate,
            ),
            broker,
            identity=identity,
            config=workspace.config,
            stopped=self._stop.stop,
            check_there=self.check_there,
        )
        self.endpoint = OwnerEndpoint(
            address=self.server.listen.url(self.server.port, workspace.host),
            epoch=self.epoch,
            instance=identity.instance,
            pid=self.pid,
            host=socket.gethostname(),
            broker=workspace.kind + (owner_endpoint.READ_ONLY if _is_read_only(broker) else ""),
        )

    def check_there(self, *, is_early: bool = False) -> None:
        """Raise once the workspace was deleted, or another process owns its journals.

        What is acknowledged then would be nowhere, and what is read might be old. `is_early` is
        for the owner's own thread, so that calls do not wait for a bucket.
        """
        if self._is_there:
            self._home.look(is_early=is_early)
        if self._life is not None:
            self._life.check()

    def _restore_address(self) -> None:
        owner_endpoint.restore(self._store, self.endpoint)

    @classmethod
    def open(cls, workspace: OwnedWorkspace) -> Self:
        """Become the owner; `AlreadyOwned` while another process, or this one, is."""
        store = store_at(workspace.path, workspace.config)
        lock: int | None = None
        broker: Broker | None = None
        if workspace.takeover is None:
            path = store.path(owner_endpoint.LOCK_FILE)
            with storage_errors(f"locking {path}"):
                lock = folder_lock.lock(path)
        try:
            open_broker = _opening(workspace, store)
            # A bucket is asked for both at the same time.
            with ThreadPoolExecutor(1, thread_name_prefix="millrace-owner-home") as pool:
                finding = pool.submit(WorkspaceHome, store)
                broker = open_broker()
                home = finding.result(_HOME_S_MAX)
            owner = cls(workspace, broker, lock, home)
        except BaseException:
            if broker is not None:
                broker.close()
            if lock is not None:
                os.close(lock)
            raise
        begin_report(store)
        try:
            if owner._life is not None:
                owner._life.give_sign()
            fault("owner.open.before_endpoint")
            owner_endpoint.write(store, owner.endpoint)
            fault("owner.open.after_endpoint")
            _owners.add(owner)
            # Registered last, so done first: Flight's own clean-up waits for calls that wait.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
            owner._keeper.start()
            if workspace.upkeep is not None:
                owner._upkeep.start()
            if owner._life is not None:
                owner._life.start()
        except BaseException:
            owner.close()
            raise
        _log.info("owns the journals of %s: %s", workspace.path, owner.endpoint)
        return owner

    def close(self) -> None:
        """Let current calls finish, then give up the journals."""
        if self.pid != os.getpid():
            return
        self._stop.stop()
        wait_ms = self.workspace.config.owner_stop_ms_max
        self._end(wait_ms)
        # They may be in the middle of tidying, which ends by itself.
        begun = [self._upkeep] if self._upkeep.ident is not None else []
        still_running([self._keeper, *begun], wait_ms)

    def _end(self, wait_ms: int) -> None:
        with self._ending:
            if self.ended.is_set():
                return
            try:
                self.server.end_calls(wait_ms)
                with contextlib.suppress(MillraceError):
                    owner_endpoint.remove(self._store, self.endpoint.instance)
                # Wakes calls that wait for rows.
                self.broker.close()
                if self._life is not None:
                    self._life.end()
                within(self.server.shutdown, wait_ms, "millrace-owner-end")
            finally:
                if self._lock is not None:
                    os.close(self._lock)
                self.ended.set()
                end_report(self._store)
                _log.info("gave up the journals of %s", self.workspace.path)
                _owners.discard(self)

    def on_stopped(self) -> None:
        """The broker writes no more: give up the journals, so that they can be opened again."""
        self._stop.stop()

    def _keep(self) -> None:
        """Tidy in idle moments; end when the broker has stopped, or the workspace was deleted."""
        idle_s = self.workspace.config.owner_idle_ms / 1000
        most_s = OWNER_TIDY_MS_MAX / 1000
        looked_at = tidied_at = time.monotonic()
        while self._stop.sleep(idle_s / _TICKS_PER_IDLE):
            self.server.live.tick()
            try:
                is_early = time.monotonic() - looked_at >= _LOOK_S
                looked_at = time.monotonic() if is_early else looked_at
                self.check_there(is_early=is_early)
            except (WorkspaceUnknown, BrokerStopped):
                break
            except MillraceError:
                continue  # The store is away for a while.
            now, written_at = time.monotonic(), self.server.written_at
            is_idle = now - written_at >= idle_s
            if written_at > tidied_at and (is_idle or now - tidied_at >= most_s):
                tidied_at = now
                self._tidy()
        self.close()

    def _look_after(self) -> None:
        """Let the workspace be looked after, for as long as this is the owner."""
        upkeep = self.workspace.upkeep
        assert upkeep is not None, "the thread is started only then"
        while self._stop.sleep(self.workspace.config.upkeep_look_ms / 1000):
            if _is_read_only(self.broker):
                return
            try:
                upkeep(self.broker, self.server.live, self._stop)
            except BrokerStopped:
                self._stop.stop()
            except MillraceError as error:
                _log.warning("old rows and files were not all removed: %s", error)

    def _tidy(self) -> None:
        try:
            self.broker.tidy()
        except BrokerStopped:
            self._stop.stop()
        except MillraceError:
            return  # A full disk, say: what could not be done now is done another time.


def _opening(workspace: OwnedWorkspace, store: Store) -> Callable[[], Broker]:
    """How to open the journals; `AlreadyOwned` while the log's owner lives."""
    takeover, watch = workspace.takeover, workspace.watch
    if takeover is None:
        if owner_endpoint.read(store) is None:
            return workspace.open_broker
        return _after_a_kill(workspace.path, workspace.open_broker)
    sign = read_sign(store)
    if not watch.is_over(sign):
        if watch.is_silent():
            workspace.ahead.begin(takeover.load)
        else:
            workspace.ahead.drop()
        raise AlreadyOwned(
            f"another process owns the journals of {workspace.path}\n"
            "  to fix: join it; this process can take over when it is silent for `owner_lease`"
        )

    def open_log() -> Broker:
        ahead = workspace.ahead.take(lease_s(workspace.config))
        return watch.open(sign, partial(takeover.open, ahead=ahead))

    return open_log if sign is None or sign.is_ended else _after_a_kill(workspace.path, open_log)


def _after_a_kill(path: str, open_broker: Callable[[], Broker]) -> Callable[[], Broker]:
    """Open journals that their last owner did not give up."""

    def take_over() -> Broker:
        broker = open_broker()
        TAKEOVERS.add()
        _log.warning("takes over the journals of %s, whose last owner was killed", path)
        return broker

    return take_over


def _is_read_only(broker: Broker) -> bool:
    """Whether commits are missing, and the rest may only be read."""
    return bool(getattr(broker, "is_read_only", False))


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _close_all() -> None:
    for owner in list(_owners):
        owner.close()


os.register_at_fork(after_in_child=_owners.clear)
