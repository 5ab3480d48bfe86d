"""What an agent answers, over Arrow Flight.

Invariant: no call is looked at before it has shown the token of the folder it is about. A fetch
sends slices of the mapped file, without copying them first.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MillraceError, Retriable, UserError
from millrace.faults import fault
from millrace.ids import FolderId
from millrace.shuffle.index import encode_json
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.host_folder import HostFolder, Hosting
from millrace.transport.agent.output_catalog import OutputCatalog, RangeBytes
from millrace.transport.flight import wire
from millrace.transport.flight.guarded_server import (
    ADMISSION,
    Admission,
    AnyHeaders,
    GuardedServer,
    only,
    same,
)
from millrace.transport.flight.tls import Certificate
from millrace.transport.flight.wire import AgentPong
from millrace.version import __version__

CHUNKS: Final = pa.schema([("bytes", pa.large_binary())])


def now_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class _Admitted(fl.ServerMiddleware):  # type: ignore[misc]
    """A call that showed the right token, and the folder it is about."""

    def __init__(self, hosted: HostFolder) -> None:
        super().__init__()
        self.hosted = hosted


class _FolderAdmission(Admission):
    """Lets in calls that show the token of the folder they name, as long as the lease lasts."""

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
            raise fl.FlightUnavailableError("this agent is ending")
        return _Admitted(hosted)

    def _shown_for(self, headers: AnyHeaders) -> HostFolder | None:
        """The folder that is named, if its token is shown."""
        shown = only(headers, wire.TOKEN_HEADER).removeprefix("Bearer ")
        try:
            hosted = self.hosting.find(wire.checked_folder(only(headers, wire.FOLDER_HEADER)))
        except MillraceError:
            return None
        return hosted if hosted is not None and same(shown, hosted.token) else None


class AgentServer(GuardedServer):
    """Serves map outputs of a host's folders. It listens as soon as it is made."""

    def __init__(
        self,
        location: str,
        hosting: Hosting,
        *,
        lease: AgentLease,
        config: Config,
        instance: str,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(
            location,
            _FolderAdmission(hosting, lease),
            config=config,
            message_bytes_max=config.agent_request_bytes_max,
            certificate=certificate,
        )
        self.lease = lease
        self.config = config
        self.instance = instance
        self.streams = threading.BoundedSemaphore(config.agent_streams_max)
        self.catalogs: dict[FolderId, OutputCatalog] = {}
        self._actions: dict[str, Callable[[OutputCatalog, FolderId, bytes], Iterator[bytes]]] = {
            wire.PING: self._pong,
            wire.RENEW: self._pong,
            wire.INDEX: self._index,
            wire.FIND: self._find,
        }

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the bytes of partitions."""
        with _refusals():
            _, catalog = self._catalog(context)
            data = self._limited(ticket.ticket)
            asked = wire.decode_ticket(
                data,
                chunk_bytes_max=self.config.fetch_chunk_bytes_max,
                ranges_max=self.config.fetch_ranges_max,
            )
            return fl.GeneratorStream(CHUNKS, self._stream(catalog.messages(asked)))

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Answer a question."""
        with _refusals():
            folder, catalog = self._catalog(context)
            answer = self._actions.get(action.type)
            if answer is None:
                raise UserError(
                    f"unknown action {action.type[:80]!r}\n"
                    f"  known: {', '.join(sorted(self._actions))}\n"
                    "  to fix: use the same version of Millrace on both sides"
                )
            body = self._limited(action.body.to_pybytes())
            return iter(list(answer(catalog, folder, body)))

    def _stream(self, messages: Iterator[RangeBytes]) -> Iterator[pa.RecordBatch]:
        # Taken here and not before: a stream that is never begun would never give it back.
        with _refusals():
            if not self.streams.acquire(timeout=self.config.agent_call_ms_max / 2000):
                raise Retriable(
                    f"the agent serves {self.config.agent_streams_max} fetches already\n"
                    "  to fix: ask again, or raise agent_streams_max"
                )
            try:
                for message in messages:
                    self.lease.on_call(now_ms())
                    yield _batch(message)
                    fault("agent.stream.after_chunk")
            finally:
                self.streams.release()

    def _pong(self, _catalog: OutputCatalog, folder: FolderId, _body: bytes) -> Iterator[bytes]:
        pong = AgentPong(folder=folder, version=__version__, instance=self.instance)
        yield wire.encode_pong(pong)

    def _index(self, catalog: OutputCatalog, _folder: FolderId, body: bytes) -> Iterator[bytes]:
        yield encode_json(catalog.index(wire.decode_which(body)))

    def _find(self, catalog: OutputCatalog, _folder: FolderId, body: bytes) -> Iterator[bytes]:
        for found in catalog.find(wire.decode_search(body)):
            yield b"" if found is None else encode_json(found)

    def _catalog(self, context: fl.ServerCallContext) -> tuple[FolderId, OutputCatalog]:
        hosted = context.get_middleware(ADMISSION).hosted
        known = self.catalogs.get(hosted.folder)
        if known is None or known.store != hosted.store:
            known = OutputCatalog(hosted.store, self.config)
            self.catalogs[hosted.folder] = known
        return hosted.folder, known

    def _limited(self, data: bytes) -> bytes:
        most = self.config.agent_request_bytes_max
        if len(data) > most:
            raise UserError(f"a question of {len(data)} bytes\n  to fix: send at most {most}")
        return data


@contextmanager
def _refusals() -> Iterator[None]:
    """Send errors in a form that gives the client the same kind of error."""
    try:
        yield
    except MillraceError as error:
        raise fl.FlightServerError("refused", extra_info=wire.encode_error(error)) from error


def _batch(message: RangeBytes) -> pa.RecordBatch:
    """A message as Flight sends it: a row for each range in it."""
    count = len(message.sizes)
    offsets = pa.py_buffer(array("q", accumulate(message.sizes, initial=0)))
    column = pa.Array.from_buffers(pa.large_binary(), count, [None, offsets, message.data])
    return pa.RecordBatch.from_arrays([column], schema=CHUNKS)
