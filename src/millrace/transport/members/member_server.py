"""What a member answers over Arrow Flight.

`DoExchange` is a stream: one from the session for the slice, one from each other slice for the
queue. `DoGet` gives visible rows. Actions are for what the session asks of a queue.

Invariant: no call is looked at before it has shown the token, and that it is of this session: of
its task and the epoch of its lease. So nobody of an earlier session reaches this one's queues.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MillraceError, UserError
from millrace.reads.member import Member
from millrace.transport.flight import wire
from millrace.transport.flight.guarded_server import Admission, GuardedServer
from millrace.transport.flight.tls import Certificate
from millrace.transport.members.member_links import MemberLink
from millrace.transport.members.member_messages import (
    BODIES,
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
SLICE: Final = "slice"
QUEUE: Final = "queue"
RELEASE: Final = "release"
LIMIT_ON: Final = "limit-on"
LIMIT_OFF: Final = "limit-off"
STATS: Final = "stats"
STOP: Final = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionId:
    """Which session a member belongs to, and what callers must show."""

    task: str
    epoch: int
    token: str

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What a caller shows."""
        return [
            (wire.TOKEN_HEADER.encode(), f"Bearer {self.token}".encode()),
            *((name.encode(), value.encode()) for name, value in self.shown().items()),
        ]

    def shown(self) -> dict[str, str]:
        """What says which session it is."""
        return {SESSION_HEADER: f"{self.task}/{self.epoch}"}


class MemberCalls(Protocol):
    """What a server asks of the member that it serves."""

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
        location: str,
        served: MemberCalls,
        *,
        session: SessionId,
        config: Config,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(
            location,
            Admission(session.token, session.shown(), "not the token or not the session of this"),
            config=config,
            message_bytes_max=config.reads_envelope_bytes_max,
            certificate=certificate,
        )
        self._served = served
        self._config = config
        self.streams = 0
        """How many were opened here."""
        self._actions: dict[str, Callable[[pa.Buffer], bytes]] = {
            RELEASE: self._release,
            LIMIT_ON: lambda _: self._set_limit_off(off=False),
            LIMIT_OFF: lambda _: self._set_limit_off(off=True),
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
        """Serve a stream until whoever opened it ends it."""
        with _refusals():
            slice_ = _asked(descriptor.command)
        served = self._served
        if slice_ is None:
            link = MemberLink(
                peer="the session",
                writer=writer,
                says=FROM_SLICE,
                hears=FROM_SESSION,
                config=self._config,
                lost=served.session_lost,
            )
            self._serve(link, reader, lambda: served.take_slice(link), served.on_session)
            return
        link = MemberLink(
            peer=f"the slice of member {slice_}",
            writer=writer,
            says=FROM_QUEUE,
            hears=TO_QUEUE,
            config=self._config,
            lost=lambda error: served.peer_lost(slice_, error),
        )

        def begin() -> None:
            served.take_queue(slice_, link)
            link.send(StreamsOpened())

        self._serve(link, reader, begin, lambda rows: served.member.on_rows(slice_, rows))

    def do_get(self, _context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the rows that become visible, in order, a bounded piece at a time."""
        with _refusals():
            limit = self._config.reads_envelope_bytes_max
            visible = decode_visible(pa.py_buffer(ticket.ticket), limit)
            batches = self._served.member.read(visible)
        return fl.GeneratorStream(BODIES, self._rows(batches))

    def do_action(self, _context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Answer a question."""
        with _refusals():
            answer = self._actions.get(action.type)
            if answer is None:
                known = ", ".join(self._actions)
                raise UserError(
                    f"unknown action {action.type[:80]!r}\n  known: {known}\n"
                    "  to fix: use the same version of Millrace on both sides"
                )
            return iter([answer(action.body)])

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
        with _refusals():
            for batch in batches:
                for piece in pieces(batch, self._config.reads_message_bytes_target):
                    yield encode_rows(piece)

    def _release(self, body: pa.Buffer) -> bytes:
        self._served.member.release(*decode_release(body, self._config.reads_envelope_bytes_max))
        return b""

    def _set_limit_off(self, *, off: bool) -> bytes:
        self._served.member.set_limit_off(off=off)
        return b""

    def _stats(self, _body: pa.Buffer) -> bytes:
        used = self._served.member.used_bytes()
        return json.dumps({"used_bytes": used, "streams": self.streams}).encode()

    def _stop(self, _body: pa.Buffer) -> bytes:
        self._served.stop()
        return b""


def pieces(batch: pa.RecordBatch, bytes_target: int) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about this size."""
    count = max(1, batch.num_rows * bytes_target // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, count):
        yield batch.slice(begin, count)


def command(slice_: int | None) -> bytes:
    """What a stream is for: the session's (None), or that of a member's slice."""
    kind = {"kind": SLICE} if slice_ is None else {"kind": QUEUE, "slice": slice_}
    return json.dumps(kind).encode()


def _asked(text: bytes | None) -> int | None:
    try:
        found = json.loads(text or b"")
        if found["kind"] == SLICE:
            return None
        if found["kind"] == QUEUE and type(found["slice"]) is int:
            return int(found["slice"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(
        f"not a stream of a slice or a queue: {str(text)[:80]!r}\n"
        "  to fix: use the same version of Millrace on both sides"
    )


@contextmanager
def _refusals() -> Iterator[None]:
    """Send errors in a form that gives the caller the same kind of error."""
    try:
        yield
    except MillraceError as error:
        raise fl.FlightServerError("refused", extra_info=wire.encode_error(error)) from error
