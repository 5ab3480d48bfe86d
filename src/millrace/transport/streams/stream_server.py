"""Serves the rows of a streaming query over Flight, from the process that reads them.

Spark's tasks fetch here what a range of checkpoints shows to a member. Invariant: no call is looked
at before it has shown the workspace's token and the read's name; a range is always the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MemberLost
from millrace.metrics.process_metrics import SENT_BYTES, STREAMS_NOW
from millrace.storage import documents
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at
from millrace.transport.flight.flight_calls import CallCut, CallRefused, FlightCalls
from millrace.transport.flight.guarded_server import (
    Admission,
    GuardedServer,
    ListenAddress,
    errors_sent,
)
from millrace.transport.flight.tls import Certificate
from millrace.transport.flight.wire import MessageLimit, WireMessage, from_json
from millrace.transport.members.member_server import pieces

STREAM_HEADER: Final = "x-millrace-stream"
FOLDER: Final = "streams"


class StreamShare(WireMessage, frozen=True, kw_only=True):
    """What one task of Spark reads: what checkpoints above `start` up to `end` show to a member."""

    member: int
    members: int
    start: int
    end: int


class RowSource(Protocol):
    """Where the rows come from."""

    schema: pa.Schema
    """Of every batch."""

    def rows(self, share: StreamShare) -> Iterator[pa.RecordBatch]:
        """The rows of a piece; every call returns the same."""


class StreamServer(GuardedServer):
    """Serves rows. It listens as soon as it is made."""

    def __init__(
        self,
        host: str,
        rows: RowSource,
        *,
        read: str,
        token: str,
        config: Config,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(
            f"the stream of {read}",
            ListenAddress(host=host, certificate=certificate),
            Admission(token, "not the token or the name of this", required={STREAM_HEADER: read}),
            config=config,
            limit=MessageLimit("agent_request_bytes_max", config.agent_request_bytes_max),
        )
        self._rows = rows

    def do_get(self, _context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the rows of a piece, in order, a bounded part at a time."""
        with errors_sent():
            batches = self._rows.rows(from_json(ticket.ticket, StreamShare, "a share of a stream"))
        return fl.GeneratorStream(self._rows.schema, self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_sent(), STREAMS_NOW.one_more("stream"):
            for batch in batches:
                yield from pieces(batch, self.config.reads_message_bytes_target)
                SENT_BYTES.add(batch.nbytes, "stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAddress:
    """How a task reaches the stream: by a file in the workspace, else where it was when planned."""

    path: str
    """The workspace's folder."""
    read: str
    token: str
    planned: str
    """Where it answered when the batch was planned: for hosts that do not see the folder."""

    def find(self) -> str:
        """Where the stream answers now."""
        data = store_at(self.path, Config()).read(_file(self.read))
        recorded = documents.hint(data, documents.AddressHint)
        return self.planned if recorded is None else recorded.address


def tell(store: Store, read: str, address: str) -> None:
    """Write the address of a coordinated read's stream to its file, over an earlier one."""
    store.make_folder(FOLDER)
    store.replace(_file(read), documents.AddressHint(address).to_json())


def fetch(
    where: StreamAddress, piece: StreamShare, roots: bytes | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, from wherever the stream answers."""
    address = where.find()
    flight = FlightCalls(where.token, {STREAM_HEADER: where.read}, connections_max=1, roots=roots)
    try:
        yield from flight.receive(address, piece.to_json())
    except CallRefused as error:
        raise MemberLost(
            f"{address} refuses the token, or is not the stream of {where.read}\n"
            "  to fix: start the stream again"
        ) from error
    except CallCut as error:
        raise MemberLost(
            f"the stream of {where.read} at {address} does not answer: {error}\n"
            "  to fix: start the query again; if tasks run on other hosts, set "
            "MILLRACE_AGENT_HOST on the driver to an address that they reach"
        ) from error
    finally:
        flight.close()


def _file(read: str) -> str:
    return f"{FOLDER}/{read}.json"
