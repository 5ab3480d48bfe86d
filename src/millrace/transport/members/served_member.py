"""A member that others reach over Flight: its server, its slice and queue, its streams to others.

It opens its streams when the session opens its own, and works until the session stops it, or is
gone. Its own queue needs no Flight: it is handed rows directly.

Invariant: the first failure is sent to the session, which ends it all; a member by itself closes
nothing that another one might notice before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from millrace.config import Config
from millrace.errors import MemberLost, MillraceError, UserError
from millrace.journal.broker import Broker
from millrace.reads.member import Member
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.routing import Extract
from millrace.reads.model.session_messages import ToSession
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, Reply, RowsAccepted
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.transport.flight.tls import Certificate
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_links import MemberLink, SilenceWatch
from millrace.transport.members.member_messages import (
    FROM_QUEUE,
    TO_QUEUE,
    OpenStreams,
    SessionFailed,
    StreamsOpened,
)
from millrace.transport.members.member_server import MemberServer, SessionId
from millrace.transport.members.stream_opening import StreamOpening
from millrace.wakeup import WorkerThread, still_running, within

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeat:
    """Which member of which session a process is to be, and where."""

    number: int
    members: int
    read: CoordinatedRead
    session: SessionId
    config: Config
    folder: str
    """For the files of its queue."""
    host: str = LOOPBACK
    """The address that it listens on and others connect to."""
    certificate: Certificate | None = None
    roots: bytes | None = None
    extract: Extract | None = None


class ServedMember:
    """One member with its server. It can be reached as soon as it is made."""

    def __init__(self, seat: MemberSeat, broker: Broker) -> None:
        self.number = seat.number
        self.members = seat.members
        self._seat = seat
        self._config = seat.config
        self._lock = threading.RLock()
        self._session: MemberLink | None = None
        self._to_queues: dict[int, MemberLink] = {}
        self._from_slices: dict[int, MemberLink] = {}
        self._clients: list[MemberClient] = []
        self._opening: StreamOpening | None = None
        self._finishing: list[WorkerThread] = []
        self._is_closing = False
        self.opened = threading.Event()
        """Set when the session has opened its stream."""
        self.ended = threading.Event()
        """Set when the session has stopped this, or is gone."""
        self.member = Member(
            number=seat.number,
            members=seat.members,
            read=seat.read,
            broker=broker,
            folder=seat.folder,
            links=_MemberLinks(self),
            reply=self._reply,
            failed=lambda error: self._fail(None, error),
            config=seat.config,
            extract=seat.extract,
        )
        self._server = MemberServer(
            ListenAddress(host=seat.host, certificate=seat.certificate),
            self,
            session=seat.session,
            config=seat.config,
        )
        self.address = self._server.address
        self._watch = SilenceWatch(self._links, seat.config)

    # From the server.
    def take_slice(self, link: MemberLink) -> None:
        """See `MemberCalls.take_slice`."""
        with self._lock:
            self._check_open()
            if self._session is not None:
                raise UserError(
                    f"member {self.number} has the stream of a session already\n"
                    "  to fix: close that session, and open this one again"
                )
            self._session = link
        self.opened.set()

    def take_queue(self, stream: int, link: MemberLink) -> None:
        """See `MemberCalls.take_queue`."""
        with self._lock:
            self._check_open()
            if not 0 <= stream < self.members or stream == self.number:
                raise UserError(
                    f"the queue of member {self.number} of {self.members} has no stream {stream}\n"
                    "  to fix: use the same version of Millrace on both sides"
                )
            if stream in self._from_slices:
                raise UserError(
                    f"the queue of member {self.number} has a stream of slice {stream} already\n"
                    "  to fix: open the session again"
                )
            self._from_slices[stream] = link

    def on_session(self, message: Any) -> None:  # noqa: ANN401 - any message of that stream
        """See `MemberCalls.on_session`."""
        if isinstance(message, OpenStreams):
            self._open(message.addresses)
        else:
            self.member.tell(message)

    def session_lost(self, _error: BaseException) -> None:
        """See `MemberCalls.session_lost`: without a session there is no work."""
        self.ended.set()

    def peer_lost(self, peer: int, error: BaseException) -> None:
        """See `MemberCalls.peer_lost`."""
        self._fail(peer, error)

    def stop(self) -> None:
        """See `MemberCalls.stop`."""
        self.close_streams()
        self.ended.set()

    # From the slice.
    def to_queue(self, queue: int, message: QueueRows | Flush) -> None:
        """Send to the queue of a member; one's own is here."""
        if queue == self.number:
            self.member.on_rows(self.number, message)
        else:
            self._to_queues[queue].send(message)

    def to_session(self, message: ToSession) -> None:
        """Send to the session."""
        session = self._session
        assert session is not None, "a slice works before its session opened it"
        session.send(message)

    # Ending.
    def close_streams(self) -> None:
        """Stop the slice and the queue, drop its files, and end the streams that this opened."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._watch.close()
        for link in self._links():
            link.close()
        if self._opening is not None:
            self._opening.close()
        wait_ms = self._config.reads_stop_ms_max
        try:
            within(self.member.close, wait_ms, "reads-member-end")
        finally:
            for client in self._clients:
                client.close()
            still_running(self._finishing, wait_ms)

    def close(self) -> None:
        """End it all. Waits for others no longer than `reads_stop_ms_max`."""
        self.close_streams()
        self.ended.set()
        within(self._server.shutdown, self._config.reads_stop_ms_max, "reads-server-end")

    # Inside.
    def _links(self) -> list[MemberLink]:
        with self._lock:
            session = [] if self._session is None else [self._session]
            return [*session, *self._to_queues.values(), *self._from_slices.values()]

    def _check_open(self) -> None:
        if self._is_closing:
            raise MemberLost(f"member {self.number} is ending\n  to fix: open the session again")

    def _reply(self, stream: int, reply: Reply) -> None:
        if stream == self.number:
            self.member.on_reply(self.number, reply)
            return
        link = self._from_slices.get(stream)
        if link is not None:
            link.send(reply)

    def _open(self, addresses: tuple[str, ...]) -> None:
        """Open all streams at once, and tell the session; the first error ends it."""
        if len(addresses) != self.members or self._clients:
            raise UserError(
                f"member {self.number} is one of {self.members}, and was opened for "
                f"{len(addresses)}, or twice\n"
                "  to fix: open the session again"
            )
        self._clients = [
            MemberClient(
                number,
                address,
                session=self._seat.session,
                config=self._config,
                roots=self._seat.roots,
            )
            for number, address in enumerate(addresses)
            if number != self.number
        ]
        self._opening = opening = StreamOpening(
            self._clients,
            slice_=self.number,
            says=TO_QUEUE,
            hears=FROM_QUEUE,
            on_message=self._on_queue,
            on_lost=self._fail,
            config=self._config,
        )
        thread = WorkerThread(lambda: self._finish(opening), "reads-opening")
        self._finishing.append(thread)
        thread.start()

    def _on_queue(self, queue: int, message: RowsAccepted | Flushed | SessionFailed) -> None:
        if isinstance(message, SessionFailed):
            raise message.error
        self.member.on_reply(queue, message)

    def _finish(self, opening: StreamOpening) -> None:
        try:
            links = opening.links()
        except BaseException as error:  # noqa: BLE001 - the session is told, and ends
            self._fail(opening.failed, error)
            return
        with self._lock:
            if self._is_closing:
                return
            self._to_queues = links
        self.member.start()
        assert self._session is not None
        self._session.send(StreamsOpened(len(links) + 1))

    def _fail(self, peer: int | None, error: BaseException) -> None:
        if self._is_closing or self._session is None:
            return
        known = error if isinstance(error, MillraceError) else _as_ours(error)
        if peer is not None:
            text = f"member {self.number} lost member {peer}\n  {known}"
            known = MemberLost(text)
        self._session.send(SessionFailed(known, peer))


@dataclass(frozen=True, slots=True)
class _MemberLinks:
    """Where the slice sends to."""

    served: ServedMember

    def to_queue(self, queue: int, message: QueueRows | Flush) -> None:
        """See `Links.to_queue`."""
        self.served.to_queue(queue, message)

    def to_session(self, message: ToSession) -> None:
        """See `Links.to_session`."""
        self.served.to_session(message)


def _as_ours(error: BaseException) -> MillraceError:
    """An error of any kind as one that can be sent."""
    return MillraceError(
        f"{type(error).__name__}: {error}\n"
        "  to fix: look at the log of the member, and open the session again"
    )
