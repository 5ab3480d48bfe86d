"""The Flight server of an agent.

Invariant: every call shows the token of its folder first. A fetch sends slices of the mapped file
without copying them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MillraceError, Retriable
from millrace.faults import fault
from millrace.ids import FolderId
from millrace.limits import MIB
from millrace.metrics.process_metrics import SENT_BYTES, STREAMS_NOW
from millrace.shuffle.index import encode_json
from millrace.transport.agent import agent_messages, host_cleanup
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.agent_messages import AgentPong
from millrace.transport.agent.host_folder import HostFolder, Hosting
from millrace.transport.agent.output_catalog import OutputCatalog, RangeBytes
from millrace.transport.flight import wire
from millrace.transport.flight.byte_batches import BYTES, byte_batch
from millrace.transport.flight.guarded_server import (
    ADMISSION,
    Admission,
    AnyHeaders,
    GuardedServer,
    ListenAddress,
    errors_sent,
    only,
    same,
)
from millrace.transport.flight.wire import MessageLimit
from millrace.version import __version__

FETCH_CHUNK_BYTES_MAX: Final = 16 * MIB
"""Most bytes per message that an agent sends, even if the client asks for more."""


def now_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class _Admitted(fl.ServerMiddleware):  # type: ignore[misc]
    """A call that showed the right token, and the folder it is about."""

    def __init__(self, hosted: HostFolder) -> None:
        super().__init__()
        self.hosted = hosted


class _FolderAdmission(Admission):
    """Admits calls that show the token of the folder they name, as long as the lease lasts."""

    def __init__(self, hosting: Hosting, lease: AgentLease) -> None:
        self.hosting = hosting
        self.lease = lease

    def refusal(self, headers: AnyHeaders) -> str | None:
        """See `Admission.refusal`."""
        return None if self._shown_for(headers) else "no such folder here, or not its token"

    def on_call(self, headers: AnyHeaders) -> _Admitted:
        """Renew the lease."""
        hosted = self._shown_for(headers)
        if hosted is None or not self.lease.on_call(now_ms()):
            raise fl.FlightUnavailableError(wire.ENDING)
        return _Admitted(hosted)

    def _shown_for(self, headers: AnyHeaders) -> HostFolder | None:
        """The folder that is named, if its token is shown."""
        shown = only(headers, wire.TOKEN_HEADER).removeprefix("Bearer ")
        try:
            hosted = self.hosting.find(
                agent_messages.checked_folder(only(headers, agent_messages.FOLDER_HEADER))
            )
        except MillraceError:
            return None
        return hosted if hosted is not None and same(shown, hosted.token) else None


class AgentServer(GuardedServer):
    """Serves map outputs of a host's folders. It listens as soon as it is made."""

    def __init__(
        self,
        listen: ListenAddress,
        hosting: Hosting,
        *,
        lease: AgentLease,
        config: Config,
        instance: str,
    ) -> None:
        super().__init__(
            "an agent",
            listen,
            _FolderAdmission(hosting, lease),
            config=config,
            limit=MessageLimit("agent_request_bytes_max", config.agent_request_bytes_max),
        )
        self.lease = lease
        self.instance = instance
        self.streams = threading.BoundedSemaphore(config.agent_streams_max)
        self.catalogs: dict[FolderId, OutputCatalog] = {}
        self.actions = {
            agent_messages.PING: self._pong,
            agent_messages.RENEW: self._pong,
            agent_messages.INDEX: self._index,
            agent_messages.FIND: self._find,
            agent_messages.KEEP: self._keep,
        }

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the bytes of partitions."""
        with errors_sent():
            self.limit.check(len(ticket.ticket))
            request = agent_messages.decode_ticket(
                ticket.ticket,
                chunk_bytes_max=FETCH_CHUNK_BYTES_MAX,
                ranges_max=self.config.fetch_ranges_max,
            )
            messages = self._catalog(context).messages(request)
            return fl.GeneratorStream(BYTES, self._stream(messages))

    def _stream(self, messages: Iterator[RangeBytes]) -> Iterator[pa.RecordBatch]:
        # Taken here and not before: a stream that is never begun would never give it back.
        with errors_sent():
            if not self.streams.acquire(timeout=self.config.agent_call_ms_max / 2000):
                raise Retriable(
                    f"the agent serves {self.config.agent_streams_max} fetches already\n"
                    "  to fix: ask again, or raise agent_streams_max"
                )
            try:
                with STREAMS_NOW.one_more("agent"):
                    for message in messages:
                        self.lease.on_call(now_ms())
                        yield byte_batch(message.data, message.sizes)
                        SENT_BYTES.add(message.data.size, "agent")
                        fault("agent.stream.after_chunk")
            finally:
                self.streams.release()

    def _pong(self, context: fl.ServerCallContext, _body: pa.Buffer) -> Iterator[bytes]:
        folder = _hosted(context).folder
        yield agent_messages.encode_pong(
            AgentPong(
                protocol=agent_messages.PROTOCOL,
                folder=folder,
                version=__version__,
                instance=self.instance,
            )
        )

    def _index(self, context: fl.ServerCallContext, body: pa.Buffer) -> Iterator[bytes]:
        yield encode_json(
            self._catalog(context).index(agent_messages.decode_which(body.to_pybytes()))
        )

    def _find(self, context: fl.ServerCallContext, body: pa.Buffer) -> Iterator[bytes]:
        for index in self._catalog(context).find(agent_messages.decode_search(body.to_pybytes())):
            yield b"" if index is None else encode_json(index)

    def _keep(self, context: fl.ServerCallContext, body: pa.Buffer) -> Iterator[bytes]:
        kept = agent_messages.decode_kept(body.to_pybytes())
        removed = host_cleanup.remove_dropped(
            _hosted(context).store, kept, now_ms=time.time_ns() // 1_000_000, config=self.config
        )
        yield agent_messages.encode_removed(removed)

    def _catalog(self, context: fl.ServerCallContext) -> OutputCatalog:
        hosted = _hosted(context)
        known = self.catalogs.get(hosted.folder)
        if known is None or known.store != hosted.store:
            known = OutputCatalog(hosted.store, self.config)
            self.catalogs[hosted.folder] = known
        return known


def _hosted(context: fl.ServerCallContext) -> HostFolder:
    """The folder that a call is about."""
    hosted: HostFolder = context.get_middleware(ADMISSION).hosted
    return hosted
