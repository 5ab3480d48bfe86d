"""Single calls to an owner of journals over Arrow Flight, with token and deadline, tried once.

For errors see `FlightCalls`. A `CallCut` says whether the call may have been carried out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import UserError
from millrace.journal.core.values import KafkaPlace, SegmentFile
from millrace.reads.live.follow_requests import AskAgain, FollowEnded, FollowRequest, Message
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at
from millrace.transport.agent.agent_calls import FETCH_BYTES_PER_S_MIN
from millrace.transport.flight.arrow_envelope import decode_answer, encode
from millrace.transport.flight.byte_batches import byte_batches
from millrace.transport.flight.flight_calls import CallCut, FlightCalls
from millrace.transport.owner.broker_calls import CALLS, BrokerCall, Upload
from millrace.transport.owner.owner_endpoint import JournalAddress, Mark
from millrace.transport.owner.owner_server import (
    PING,
    PROTOCOL,
    TOO_LARGE,
    WORKSPACE_HEADER,
    request_limit,
)
from millrace.transport.owner.silent_owner import SilentOwner
from millrace.transport.streams.follow_messages import decode_message, encode_request


@dataclass(frozen=True, slots=True)
class DirectPlace:
    """The folder of the journals' files, within the store of their workspace."""

    store: Store
    folder: str


class OwnerLink(Protocol):
    """A way to one owner."""

    epoch: int
    address: str

    def call(self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401
        """Make a call and return its answer."""

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:
        """Hand a file of this process's over, to be adopted; return it as the owner has it."""

    def follow(self, request: FollowRequest) -> Generator[Message]:
        """The messages for a follower, from the first one on."""

    def shared_folder(self) -> str | None:
        """The adoption folder, if files that are written here are there for the owner, too."""

    def direct_place(self) -> DirectPlace | KafkaPlace | None:
        """Where rows of the journals are, if this process may see them; None: the owner serves."""

    def is_stale(self) -> bool:
        """Whether this owner has ended, or another has begun; checked before each call."""

    def is_superseded(self) -> bool:
        """Whether another owner with a higher epoch is known."""

    def close(self) -> None:
        """Close the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPong:
    """The identity of the owner that answered."""

    workspace_id: str
    epoch: int
    instance: str


class OwnerConnections(FlightCalls):
    """Connections to owners of a workspace's journals."""

    def __init__(self, where: JournalAddress, config: Config, roots: bytes | None = None) -> None:
        shown = {} if where.workspace_id is None else {WORKSPACE_HEADER: where.workspace_id}
        super().__init__(where.token, shown, connections_max=config.connections_max, roots=roots)
        self.where = where
        self.config = config

    def ping(self, address: str, *, timeout_ms: int) -> OwnerPong:
        """Ask for the identity of the owner at an address."""
        (answer,) = self.ask(address, PING, timeout_ms=timeout_ms)
        try:
            pong = json.loads(answer.to_pybytes())
            if pong["protocol"] != PROTOCOL:
                raise UserError(
                    f"the owner at {address} speaks protocol {pong['protocol']}, this Millrace "
                    f"{PROTOCOL}\n  found: Millrace {pong['version']}\n"
                    "  to fix: run the same version of Millrace everywhere"
                )
            return OwnerPong(
                workspace_id=str(pong["workspace"]),
                epoch=int(pong["epoch"]),
                instance=str(pong["instance"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CallCut(
                f"{address} answers in a way not understood", may_be_done=False
            ) from error


class FlightLink:
    """The way to an owner in another process, or in this one."""

    def __init__(
        self,
        flight: OwnerConnections,
        address: str,
        pong: OwnerPong,
        mark: Mark,
        watch: SilentOwner | None = None,
        *,
        is_seen: bool = False,
    ) -> None:
        """`mark` is that of the owner's file before it was read; `watch` ends calls that hang.

        `is_seen` is whether the owner's file in the workspace led here.
        """
        self.epoch = pong.epoch
        self.instance = pong.instance
        self._flight = flight
        self.address = address
        self._folder: tuple[str | None] | None = None
        self._direct: tuple[DirectPlace | KafkaPlace | None] | None = None
        self._mark = mark
        self._watch = watch
        self._is_seen = is_seen

    def call(self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401
        """See `OwnerLink.call`."""
        body = call.encode_request(arguments)
        request_limit(self._flight.config).check(len(body), TOO_LARGE)
        slowest_ms = len(body) * 1000 // FETCH_BYTES_PER_S_MIN
        timeout_ms += slowest_ms

        def ask() -> pa.Buffer:
            (answer,) = self._flight.ask(self.address, call.name, body, timeout_ms=timeout_ms)
            return answer

        answer = ask() if self._watch is None else self._watch.during(ask, self.instance)
        return call.decode_answer(answer)

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:
        """See `OwnerLink.store`."""
        with pa.memory_map(path) as source:
            data = source.read_buffer()
            command = encode(Upload(file, xxhash.xxh3_64_hexdigest(data)))
            slowest_ms = data.size * 1000 // FETCH_BYTES_PER_S_MIN
            chunks = byte_batches(data, self._flight.config.fetch_chunk_bytes)
            answer = self._flight.send(
                self.address, command, chunks, timeout_ms=timeout_ms + slowest_ms
            )
        return decode_answer(answer, SegmentFile)

    def follow(self, request: FollowRequest) -> Generator[Message]:
        """See `OwnerLink.follow`."""
        config = self._flight.config
        # The owner gives a sign of life far more often; the other half is for finding the next one.
        silent_ms = max(2 * config.live_beat_ms, ms(config.gone_after) // 2)
        timeout_ms = config.live_stream_ms_max + ms(config.owner_timeout)
        received = self._flight.receive(
            self.address, encode_request(request), timeout_ms=timeout_ms, silent_ms=silent_ms
        )
        with contextlib.closing(received):
            for batch in received:
                message = decode_message(batch)
                yield message
                if isinstance(message, AskAgain | FollowEnded):
                    return
        raise CallCut("the stream ended early", may_be_done=False)

    @property
    def where(self) -> JournalAddress:
        """How this reaches the journals."""
        return self._flight.where

    def beside(self, address: str) -> FlightLink:
        """The way to another server of this workspace, which streams rows as an owner does."""
        assert self._flight.where.workspace_id is not None
        identity = OwnerPong(
            workspace_id=self._flight.where.workspace_id, epoch=self.epoch, instance=self.instance
        )
        return FlightLink(self._flight, address, identity, self._mark)

    def shared_folder(self) -> str | None:
        """See `OwnerLink.shared_folder`."""
        if self._folder is None:
            self._folder = (self._find_shared_folder(),)
        return self._folder[0]

    def direct_place(self) -> DirectPlace | KafkaPlace | None:
        """See `OwnerLink.direct_place`."""
        if self._direct is None:
            self._direct = (self._find_direct_place(),)
        return self._direct[0]

    def is_stale(self) -> bool:
        """See `OwnerLink.is_stale`: whether the owner's file is no longer what it was."""
        return self._mark != self._flight.where.mark()

    def is_superseded(self) -> bool:
        """See `OwnerLink.is_superseded`."""
        endpoint = self._flight.where.owner()
        return endpoint is not None and endpoint.epoch > self.epoch

    def close(self) -> None:
        """See `OwnerLink.close`."""
        self._flight.pool.drop(self.address)

    def _seen_path(self) -> str | None:
        """The workspace, if it is seen here: this very owner left its file there."""
        path = self._flight.where.path
        if self._is_seen:
            return path
        endpoint = self._flight.where.owner()
        return path if endpoint is not None and endpoint.instance == self.instance else None

    def _find_shared_folder(self) -> str | None:
        path = self._seen_path()
        if path is None:
            return None
        folder = str(self._ask_once("adoption_folder"))
        return folder if _is_below(folder, path) and os.access(folder, os.W_OK | os.X_OK) else None

    def _find_direct_place(self) -> DirectPlace | KafkaPlace | None:
        cluster: KafkaPlace | None = self._ask_once("direct_cluster")
        if cluster is not None:
            return cluster
        path = self._seen_path()
        folder = None if path is None else self._ask_once("direct_folder")
        if path is None or folder is None:
            return None
        store = store_at(path, self._flight.config)
        if store.remote:
            return DirectPlace(store, folder)
        if not _is_below(folder, path):
            return None
        return DirectPlace(store, os.path.relpath(os.path.realpath(folder), os.path.realpath(path)))

    def _ask_once(self, call: str) -> Any:  # noqa: ANN401 - of the type of this call
        timeout_ms = self._flight.config.peer_ms(ms(self._flight.config.owner_timeout))
        return self.call(CALLS[call], {}, timeout_ms=timeout_ms)


def _is_below(folder: str, path: str) -> bool:
    return os.path.realpath(folder).startswith(os.path.realpath(path) + os.sep)
