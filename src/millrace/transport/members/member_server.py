"""The Flight server of a member.

`DoExchange` is a stream: one from the session for the slice, one from each other slice for the
queue. `DoGet` gives visible rows. Actions are for what the session asks of a queue.

Invariant: no call is looked at before it has shown the token, and that it is of this session: of
its name and the epoch of its lease. So no member of an earlier session reaches this one's queues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.reads.member import Member
from millrace.reads.session.members_port import MemberUsage
from millrace.reads.slice.outbox import SentSoFar
from millrace.transport.flight.byte_batches import BYTES
from millrace.transport.flight.guarded_server import (
    Admission,
    GuardedServer,
    ListenAddress,
    errors_sent,
)
from millrace.transport.flight.wire import MessageLimit, WireMessage, from_json
from millrace.transport.members.member_links import MemberLink
from millrace.transport.members.member_messages import (
    FROM_QUEUE,
    FROM_SESSION,
    FROM_SLICE,
    TO_QUEUE,
    SessionFailed,
    StreamsOpened,
    decode_release,
    decode_visible,
    encode_rows,
)

SESSION_HEADER: Final = "x-millrace-reads"
RELEASE: Final = "release"
LIMIT_ON: Final = "limit-on"
LIMIT_OFF: Final = "limit-off"
STATS: Final = "stats"
STOP: Final = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionId:
    """Which session a member belongs to, and what callers must show."""

    read: str
    epoch: int
    token: str

    def shown(self) -> dict[str, str]:
        """The headers that name the session."""
        return {SESSION_HEADER: f"{self.read}/{self.epoch}"}


class StreamCommand(WireMessage, frozen=True):
    """What a stream is for: the session's (None), or that of a member's slice to a queue."""

    slice: int | None


class MemberStats(WireMessage, frozen=True):
    """The state of a member."""

    used_bytes: int
    """On disk."""
    streams: int
    """That were opened to it."""
    sent: list[tuple[int, int, int, bool]]
    """By its slice to each queue: see `SentSoFar`."""

    def usage(self) -> MemberUsage:
        """What it takes and has sent."""
        return MemberUsage(self.used_bytes, tuple(SentSoFar(*values) for values in self.sent))


class MemberCalls(Protocol):
    """The calls of a server to the member that it serves."""

    number: int
    members: int
    member: Member

    def take_slice(self, link: MemberLink) -> None:
        """The session opened its stream; refused if it has one."""

    def take_queue(self, stream: int, link: MemberLink) -> None:
        """A slice opened its stream; refused if it has one."""

    def on_session(self, message: Any) -> None:  # noqa: ANN401 - any message of that stream
        """The session says something."""

    def session_lost(self, error: BaseException) -> None:
        """The session's stream ended."""

    def peer_lost(self, peer: int, error: BaseException) -> None:
        """The stream of another member's slice ended."""

    def stop(self) -> None:
        """The session ends."""


class MemberServer(GuardedServer):
    """Serves one member. It listens as soon as it is made."""

    def __init__(
        self,
        listen: ListenAddress,
        served: MemberCalls,
        *,
        session: SessionId,
        config: Config,
    ) -> None:
        reason = "not the token or not the session of this"
        super().__init__(
            f"member {served.number}",
            listen,
            Admission(session.token, reason, required=session.shown()),
            config=config,
            limit=MessageLimit("reads_envelope_bytes_max", config.reads_envelope_bytes_max),
        )
        self._served = served
        self.streams = 0
        """How many were opened here."""
        self.actions = {
            RELEASE: self._release,
            LIMIT_ON: lambda _context, _body: self._set_disk_limit(is_on=True),
            LIMIT_OFF: lambda _context, _body: self._set_disk_limit(is_on=False),
            STATS: self._stats,
            STOP: self._stop,
        }

    def do_exchange(
        self,
        _context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.MetadataRecordBatchWriter,
    ) -> None:
        """Serve a stream until the end that opened it ends it."""
        with errors_sent():
            opened = from_json(descriptor.command, StreamCommand, "a stream of a slice or a queue")
            slice_ = opened.slice
        served = self._served
        if slice_ is None:
            link = MemberLink(
                peer="the session",
                writer=writer,
                says=FROM_SLICE,
                hears=FROM_SESSION,
                config=self.config,
                lost=served.session_lost,
            )
            self._serve(link, reader, lambda: served.take_slice(link), served.on_session)
            return
        link = MemberLink(
            peer=f"the slice of member {slice_}",
            writer=writer,
            says=FROM_QUEUE,
            hears=TO_QUEUE,
            config=self.config,
            lost=lambda error: served.peer_lost(slice_, error),
        )

        def begin() -> None:
            served.take_queue(slice_, link)
            link.send(StreamsOpened())

        self._serve(link, reader, begin, lambda rows: served.member.on_rows(slice_, rows))

    def do_get(self, _context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the rows that become visible, in order, a bounded piece at a time."""
        with errors_sent():
            limit = self.config.reads_envelope_bytes_max
            visible = decode_visible(pa.py_buffer(ticket.ticket), limit)
            batches = self._served.member.read(visible)
        return fl.GeneratorStream(BYTES, self._rows(batches))

    def _serve(
        self,
        link: MemberLink,
        reader: fl.MetadataRecordBatchReader,
        begin: Callable[[], None],
        handle: Callable[[Any], None],
    ) -> None:
        try:
            begin()
        except MillraceError as error:
            # An exception would end the stream and come out as another one.
            link.send(SessionFailed(error))
            # Whoever still sends would hear of a cut and not of the refusal: it ends the stream.
            with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
                while True:
                    reader.read_chunk()
            link.close()
        else:
            self.streams += 1
            link.hear(reader, handle)
        link.join()

    def _rows(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        with errors_sent():
            for batch in batches:
                for piece in pieces(batch, self.config.reads_message_bytes_target):
                    yield encode_rows(piece)

    def _release(self, _context: fl.ServerCallContext, body: pa.Buffer) -> Iterable[bytes]:
        self._served.member.release(*decode_release(body, self.limit.bytes_max))
        return [b""]

    def _set_disk_limit(self, *, is_on: bool) -> Iterable[bytes]:
        self._served.member.set_disk_limit(is_on=is_on)
        return [b""]

    def _stats(self, _context: fl.ServerCallContext, _body: pa.Buffer) -> Iterable[bytes]:
        member = self._served.member
        sent = [astuple(one) for one in member.sent()]
        return [MemberStats(member.used_bytes(), self.streams, sent).to_json()]

    def _stop(self, _context: fl.ServerCallContext, _body: pa.Buffer) -> Iterable[bytes]:
        self._served.stop()
        return [b""]


def pieces(batch: pa.RecordBatch, bytes_target: int) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about this size."""
    count = max(1, batch.num_rows * bytes_target // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, count):
        yield batch.slice(begin, count)
