"""The election of the owner of journals: the first process that opens them, then the next one.

Invariant: an owner is dead when its lock is free, and only then. Clients made by `join_journals`
never become owners. No process does where the journals are left to `millrace serve`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from millrace.config import Config
from millrace.errors import AlreadyOwned, DataLost, OwnerUnreachable, UserError
from millrace.storage.workspace_home import store_at
from millrace.transport.flight.flight_calls import CallCut, CallRefused
from millrace.transport.flight.tls import trusted_roots
from millrace.transport.owner import owner_endpoint
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import OwnedWorkspace, Owner
from millrace.transport.owner.local_link import LocalLink
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.owner.owner_endpoint import JournalAddress, OwnerEndpoint
from millrace.transport.owner.owner_life import LifeWatch
from millrace.transport.owner.owner_links import (
    FlightLink,
    OwnerConnections,
    OwnerLink,
    OwnerPong,
)
from millrace.transport.owner.silent_owner import SilentOwner

_POLL_S: Final = 0.02
_RESTART_POLL_S: Final = 0.1


class Joining:
    """Finds the owner in another process."""

    def __init__(
        self,
        where: JournalAddress,
        config: Config,
        roots: bytes | None = None,
        watch: LifeWatch | None = None,
    ) -> None:
        self.flight = OwnerConnections(where, config, roots)
        self._where = where
        self._config = config
        self._watch = watch or LifeWatch(config)

    def connect(self, deadline: float, epoch_min: int) -> OwnerLink:
        """The owner that answers now; `OwnerUnreachable` if none does."""
        mark, endpoint = self._where.mark(), self._where.owner()
        if endpoint is not None and endpoint.epoch >= epoch_min:
            pong = self._reach(endpoint.address, endpoint, deadline, epoch_min)
            silence = self._silence()
            return FlightLink(self.flight, endpoint.address, pong, mark, silence, is_seen=True)
        if self._where.address is not None:
            pong = self._reach(self._where.address, None, deadline, epoch_min)
            return FlightLink(self.flight, self._where.address, pong, mark)
        reason = "no owner" if endpoint is None else f"only {endpoint}, which was taken over"
        raise OwnerUnreachable(
            f"{reason} in {self._where.path}\n"
            "  to fix: open the workspace again; the next opener becomes the owner"
        )

    def _silence(self) -> SilentOwner | None:
        """What ends calls that hang, if the owner gives signs of life that are seen here."""
        assert self._where.path is not None
        store = owner_endpoint.store_of(self._where.path)
        silence = SilentOwner(store, self._watch, self._config)
        # In a bucket every owner gives signs, and a look is a round trip.
        return silence if store.remote or silence.is_watchable() else None

    def _reach(
        self, address: str, endpoint: OwnerEndpoint | None, deadline: float, epoch_min: int
    ) -> OwnerPong:
        left_ms = int((deadline - time.monotonic()) * 1000)
        timeout_ms = max(1, min(left_ms, self._config.owner_ping_ms_max))
        try:
            pong = self.flight.ping(address, timeout_ms=timeout_ms)
        except CallCut as cut:
            raise OwnerUnreachable(
                f"{endpoint or address}: {cut}\n"
                "  to fix: ask again; see that the host can be reached"
            ) from cut
        except CallRefused as refused:
            raise UserError(
                f"the owner at {address} refuses this workspace's token\n"
                "  to fix: open the workspace as the user who owns it, or put its token into\n"
                "  MILLRACE_TOKEN"
            ) from refused
        if endpoint is not None and pong.instance != endpoint.instance:
            raise OwnerUnreachable(
                f"another owner than {endpoint} answers there\n  to fix: ask again"
            )
        if pong.epoch < epoch_min:
            raise OwnerUnreachable(
                f"the owner at {address} has epoch {pong.epoch} and was taken over\n"
                "  to fix: ask again; the new owner answers"
            )
        return pong


class Election:
    """Owns the journals of a workspace if there is no owner, and joins the owner otherwise."""

    def __init__(self, workspace: OwnedWorkspace, roots: bytes | None = None) -> None:
        self._workspace = workspace
        self._store = store_at(workspace.path, workspace.config)
        where = JournalAddress(
            path=workspace.path, token=workspace.token, workspace_id=workspace.workspace_id
        )
        self.joining = Joining(where, workspace.config, roots, workspace.watch)

    def connect(self, deadline: float, epoch_min: int) -> OwnerLink:
        """Own or join; wait for an owner that is just beginning, or ending."""
        until = min(deadline, time.monotonic() + self._workspace.config.owner_start_ms_max / 1000)
        served_at = owner_endpoint.kept_for(self._store)
        if self._workspace.joins_only or served_at is not None:
            return self._join(until, epoch_min, served_at)
        while True:
            try:
                return LocalLink(Owner.open(self._workspace))
            except UserError as error:
                # A network disk, say, that is a local one to the owner.
                try:
                    return self.joining.connect(until, epoch_min)
                except OwnerUnreachable:
                    raise error from None
            except AlreadyOwned:
                try:
                    link = self.joining.connect(until, epoch_min)
                except OwnerUnreachable as error:
                    if time.monotonic() >= until:
                        raise self._hangs(str(error)) from error
                else:
                    self._workspace.ahead.drop()  # Another process took over, or the owner is back.
                    self._check_broker(owner_endpoint.read(self._store))
                    return link
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Let go of connections, and of what was loaded for a takeover."""
        self._workspace.ahead.drop()
        self.joining.flight.close()

    def _join(self, until: float, epoch_min: int, served_at: str | None) -> OwnerLink:
        """Join; wait for the owner that stays while it is started again."""
        while True:
            try:
                link = self.joining.connect(until, epoch_min)
            except OwnerUnreachable as error:
                if served_at is None:
                    raise self._unowned(str(error)) from error
                if time.monotonic() >= until:
                    raise self._not_served(str(error), served_at) from error
            else:
                self._check_broker(owner_endpoint.read(self._store))
                return link
            time.sleep(_RESTART_POLL_S)

    def _check_broker(self, endpoint: OwnerEndpoint | None) -> None:
        if endpoint is None or self._workspace.takes(endpoint.broker):
            return
        if endpoint.broker.endswith(owner_endpoint.READ_ONLY):
            raise DataLost(
                f"commits of the journals of {self._workspace.path} are missing\n"
                f"  found: an owner that serves what is left, to be read: {endpoint}\n"
                '  to fix: open it with accept_loss="read_only" as well; or end that process, and '
                "go on without what is missing: `millrace journal accept-loss WORKSPACE`"
            )
        raise UserError(
            f"the journals of {self._workspace.path} are served by {endpoint.broker}, not by "
            f"{self._workspace.kind}\n  found: {endpoint}\n"
            f"  to fix: open it with broker={endpoint.broker!r}, or end that process"
        )

    def _unowned(self, reason: str) -> UserError:
        return UserError(
            f"nobody serves the journals of {self._workspace.path}, and executors do not reach "
            f"this client of Spark Connect\n  found: {reason}\n"
            "  to fix: run `millrace serve` with --host beside the cluster; if executors do reach "
            "this\n  host, say at which address in MILLRACE_AGENT_HOST"
        )

    def _not_served(self, reason: str, served_at: str) -> OwnerUnreachable:
        left = self._store.path(owner_endpoint.SERVED_FILE)
        return OwnerUnreachable(
            f"the journals of {self._workspace.path} are left to `millrace serve` at {served_at}, "
            f"which does not answer\n  found: {reason}\n"
            f"  to fix: start it again; to let any process own them, remove {left}"
        )

    def _hangs(self, reason: str) -> OwnerUnreachable:
        return OwnerUnreachable(
            f"another process holds the journals of {self._workspace.path} and does not answer\n"
            f"  found: {reason}\n  to fix: wait for it, or end it; the next one takes over"
        )


def own_or_join(workspace: OwnedWorkspace) -> JoinedBroker:
    """The journals of a workspace, to be owned or joined at the first call."""
    return own_or_join_later(lambda: workspace, workspace.config)


def own_or_join_later(
    workspace: Callable[[], OwnedWorkspace],
    config: Config,
    before: Callable[[bool], object] = lambda _writes: None,
) -> JoinedBroker:
    """The same of a workspace that may not be there yet.

    Args:
        workspace: where it is; asked for when an owner is first looked for.
        config: limits.
        before: called before each call, with whether that call may change something.
    """
    made: list[Election] = []

    def connect(deadline: float, epoch_min: int) -> OwnerLink:
        if not made:
            made.append(Election(workspace(), trusted_roots(os.environ)))
        return made[0].connect(deadline, epoch_min)

    def close() -> None:
        for election in made:
            election.close()

    return JoinedBroker.of(OwnerCaller(connect, config, before=before, close=close))


def join_journals(
    where: JournalAddress,
    config: Config | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> JoinedBroker:
    """Join the owner of a workspace's journals, from wherever this runs; never become it.

    Args:
        where: made by `Workspace.journal_address()`; small, and can be pickled.
        config: limits to use instead of the defaults.
        sleep: how to wait between tries.
    """
    limits = config or Config()
    joining = Joining(where, limits, trusted_roots(os.environ))
    return JoinedBroker.of(
        OwnerCaller(joining.connect, limits, close=joining.flight.close, sleep=sleep)
    )
