"""The way to an owner in this process.

Invariant: what is written is written by other threads than the main one: Ctrl-C there would else
reach into a commit and stop the broker for everyone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from millrace.errors import BrokerStopped
from millrace.journal.core.values import SegmentFile
from millrace.reads.live.follow_requests import FollowRequest, Message
from millrace.reads.live.follower import messages
from millrace.reads.live.live_reads import LiveClosed
from millrace.storage import modes
from millrace.storage.local import sync_file
from millrace.storage.store import storage_errors
from millrace.storage.workspace_home import store_at
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner import owner_endpoint
from millrace.transport.owner.broker_calls import BrokerCall
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_links import DirectPlace
from millrace.wakeup import is_main, within


class LocalLink:
    """The way to an owner in this process: calls go straight to its broker."""

    def __init__(self, owner: Owner) -> None:
        self.epoch = owner.epoch
        self.address = owner.endpoint.address
        self.owner = owner
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="millrace-write")

    def call(self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401, ARG002
        """See `OwnerLink.call`."""
        self._check()
        ask = getattr(self.owner.broker, call.name)
        try:
            if not call.rule.writes:
                return ask(**arguments)
            self.owner.server.written_at = time.monotonic()
            if not is_main():
                return ask(**arguments)
            return self._begun(ask, arguments).result()
        except BrokerStopped:
            self.owner.on_stopped()
            raise

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:  # noqa: ARG002
        """See `OwnerLink.store`: for a file that was written when the owner was another process."""
        self._check()
        there = os.path.join(self.owner.broker.adoption_folder(), f"{secrets.token_hex(16)}.ipc")
        with storage_errors(f"writing {there}"):
            modes.make_file(there)
            shutil.copyfile(path, there)
            sync_file(there)
        return replace(file, path=there)

    def follow(self, request: FollowRequest) -> Generator[Message]:
        """See `OwnerLink.follow`: rows come straight from the rings."""
        self._check()
        try:
            yield from messages(self.owner.server.live, request)
        except LiveClosed as error:
            raise CallCut("the owner in this process has ended", may_be_done=False) from error

    def shared_folder(self) -> str | None:
        """See `OwnerLink.shared_folder`."""
        self._check()
        return self.owner.broker.adoption_folder()

    def direct_place(self) -> DirectPlace | None:
        """See `OwnerLink.direct_place`: rows go straight to the broker."""
        return None

    def is_stale(self) -> bool:
        """See `OwnerLink.is_stale`."""
        return self.owner.ended.is_set()

    def is_superseded(self) -> bool:
        """See `OwnerLink.is_superseded`."""
        workspace = self.owner.workspace
        endpoint = owner_endpoint.read(store_at(workspace.path, workspace.config))
        return endpoint is not None and endpoint.epoch > self.epoch

    def close(self) -> None:
        """See `OwnerLink.close`: ends the owner."""
        self.owner.close()
        within(
            self._writer.shutdown,
            self.owner.workspace.config.owner_stop_ms_max,
            "millrace-write-end",
        )

    def _begun(self, ask: Callable[..., Any], args: Mapping[str, Any]) -> Future[Any]:
        try:
            return self._writer.submit(ask, **args)
        except RuntimeError as error:  # Another thread closed this just now.
            raise CallCut("the owner in this process has ended", may_be_done=False) from error

    def _check(self) -> None:
        if self.owner.ended.is_set() or self.owner.pid != os.getpid():
            raise CallCut("the owner in this process has ended", may_be_done=False)
        self.owner.check_there()
