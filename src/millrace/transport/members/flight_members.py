"""The members of a session, reached over Flight: `FlightMembers` is what a session works with.

Invariant: the first failed member, or the first broken stream to one, fails the session at once,
with its name and the reason. A broken stream between two members fails it a little later, when
others have reported theirs: then the member with the fault is named, and not the one that noticed.
Closing waits for no member longer than `reads_stop_ms_max`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from millrace.config import Config
from millrace.errors import MillraceError, ReadsFailed, UserError
from millrace.journal.broker import Broker
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.routing import Extract
from millrace.reads.model.session_messages import Pressure, Reported, ToSlice
from millrace.reads.session.failed_reads import failure_kind, unreadable_rows
from millrace.reads.session.members_port import (
    MakeMembers,
    MembersRequest,
    MemberUsage,
    RunningMembers,
)
from millrace.transport.flight.tls import own_certificate, trusted_roots
from millrace.transport.members.lost_links import LostLinks
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_links import LOOKS_PER_LIMIT, MemberLink, SilenceWatch
from millrace.transport.members.member_messages import (
    FROM_SESSION,
    FROM_SLICE,
    OpenStreams,
    SessionFailed,
)
from millrace.transport.members.member_server import SessionId
from millrace.transport.members.served_member import MemberSeat, ServedMember
from millrace.transport.members.stream_opening import StreamOpening
from millrace.wakeup import WakeUp, WorkerThread, still_running, within

Answer = TypeVar("Answer")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Streams:
    """How many streams a session has."""

    total: int
    """One to each slice, and one from each slice to each queue."""
    over_flight: int
    """Without those from a slice to its own queue, which stay in the process."""


class FlightMembers:
    """The members at these addresses, in order of their numbers."""

    def __init__(
        self,
        request: MembersRequest,
        addresses: Sequence[str],
        *,
        session: SessionId,
        config: Config,
        roots: bytes | None = None,
    ) -> None:
        assert len(addresses) == request.count, (addresses, request.count)
        self.addresses = tuple(addresses)
        self._request = request
        self._config = config
        self._lock = threading.Lock()
        self._links: dict[int, MemberLink] = {}
        self._opening: StreamOpening | None = None
        self._watch: SilenceWatch | None = None
        self._is_closing = False
        self._lost: Future[tuple[int | None, BaseException]] = Future()
        """Done with the first failure: the member, and the reason."""
        self._lost_links = LostLinks()
        self._link_errors: list[tuple[int, BaseException]] = []
        """Each report of a lost link: the member that noticed it, and what it said."""
        self._judging: WorkerThread | None = None
        self._judged = WakeUp()
        self._clients = [
            MemberClient(number, address, session=session, config=config, roots=roots)
            for number, address in enumerate(addresses)
        ]
        self._pool = ThreadPoolExecutor(max(1, request.count), thread_name_prefix="reads-asks")

    def start(self) -> None:
        """Open every stream; the first error is raised, with the member and the reason."""
        self._opening = StreamOpening(
            self._clients,
            slice_=None,
            says=FROM_SESSION,
            hears=FROM_SLICE,
            first=OpenStreams(self.addresses),
            on_message=self._on_message,
            on_lost=self._fail,
            config=self._config,
        )
        try:
            self._links = self._opening.links()
        except MillraceError as error:
            who = self._opening.failed
            where = "" if who is None else f": member {who} at {self.addresses[who]}"
            raise failure_kind(error)(
                f"the members of {self._request.read.name} could not be opened{where}\n"
                f"  {type(error).__name__}: {error}\n  to fix: open the session again"
            ) from error
        for number, address in enumerate(self.addresses):
            _LOG.info("member %d joined %s from %s", number, self._request.read.name, address)
        self._watch = SilenceWatch(self._links.values, self._config)

    def streams(self) -> Streams:
        """How many streams there are."""
        count = len(self.addresses)
        return Streams(total=count + count * count, over_flight=count + count * (count - 1))

    def client(self, member: int) -> MemberClient:
        """The way to one of them."""
        if not 0 <= member < len(self._clients):
            raise UserError(
                f"there is no member {member}\n  to fix: give 0 to {len(self._clients) - 1}"
            )
        return self._clients[member]

    def send(self, slice_: int, message: ToSlice) -> None:
        """Tell a slice something."""
        self._links[slice_].send(message)

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The rows of a member's queue that are visible, in order."""
        client = self.client(member)
        try:
            return self._guarded(member, client.read(visible))
        except MillraceError as error:
            raise self._unreadable(member, error) from error

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """Every queue may free what is shown.

        The rows are committed by now. So a queue that does not answer fails the session, and not
        this call.
        """
        with contextlib.suppress(MillraceError):
            self._ask(lambda client: client.release(shown, rolled_back))

    def set_disk_limit(self, *, is_on: bool) -> None:
        """Every queue ignores its disk limit, or keeps to it again."""
        self._ask(lambda client: client.set_disk_limit(is_on=is_on))

    def usage(self) -> list[MemberUsage]:
        """What each queue takes on disk."""
        return self._ask(lambda client: client.stats().usage())

    def close(self) -> None:
        """Stop them all."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        if self._watch is not None:
            self._watch.close()
        self._judged.stop()
        if self._judging is not None:
            still_running([self._judging], self._config.reads_stop_ms_max)
        for client in self._clients:
            client.cancel()
        self._pool.shutdown(wait=False)
        stopping = [WorkerThread(partial(_stop, client), "reads-stop") for client in self._clients]
        for thread in stopping:
            thread.start()
        still_running(stopping, self._config.reads_stop_ms_max)
        if self._opening is not None:
            self._opening.close()
        for client in self._clients:
            client.close()
        within(self._pool.shutdown, self._config.reads_stop_ms_max, "reads-asks-end")

    def _ask(self, ask: Callable[[MemberClient], Answer]) -> list[Answer]:
        """Ask all at once; one that does not answer fails the session.

        The caller may hold the lock under which the session gets failures. So a failure that is
        noticed meanwhile ends the calls, and this thread reports failures of the calls.
        """
        futures = [self._pool.submit(ask, client) for client in self._clients]
        waiting: set[Future[Any]] = {*futures}
        most_s = self._config.thread_sleep_ms_max / 1000
        while waiting and not self._lost.done():
            _, waiting = wait({*waiting, self._lost}, most_s, return_when=FIRST_COMPLETED)
            waiting.discard(self._lost)
        if waiting:
            member, failure = self._lost.result(0)
            self._request.on_failure(member, failure)
            raise failure
        for number, future in enumerate(futures):
            error = future.exception(0)
            if error is not None:
                self._fail(number, error)
        return [future.result(0) for future in futures]

    def _guarded(self, member: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except MillraceError as error:
            raise self._unreadable(member, error) from error

    def _unreadable(self, member: int, error: MillraceError) -> ReadsFailed:
        self._fail(member, error)
        return unreadable_rows(member, error)

    def _on_message(self, member: int, message: Any) -> None:  # noqa: ANN401 - of that stream
        match message:
            case Reported() | Pressure():
                self._request.on_message(member, message)
            case SessionFailed(error, int(peer)):
                self._hear_of(member, peer, error)
            case SessionFailed(error, _):
                self._fail(member, error)
            case _:
                raise UserError(
                    f"member {member} said {type(message).__name__} out of turn\n"
                    "  to fix: use the same version of Millrace on all hosts"
                )

    def _hear_of(self, noticed_by: int, peer: int, error: BaseException) -> None:
        """A member lost another one; either may be at fault, so others are heard first."""
        with self._lock:
            if self._is_closing:
                return
            self._lost_links.add(noticed_by, peer)
            self._link_errors.append((noticed_by, error))
            if self._judging is None:
                self._judging = WorkerThread(self._judge, "reads-judge")
                self._judging.start()

    def _judge(self) -> None:
        """Fail the session by the reports that came, unless a member has failed meanwhile."""
        look_s = self._config.reads_silent_ms_max / 1000 / LOOKS_PER_LIMIT
        if not self._judged.sleep(look_s):
            return
        with self._lock:
            suspects, reports = self._lost_links.suspects(), list(self._link_errors)
        if len(suspects) == 1:
            (member,) = suspects
            others = [error for noticed_by, error in reports if noticed_by != member]
            self._fail(member, [*others, reports[0][1]][0])
            return
        error = reports[0][1]
        members = ", ".join(map(str, suspects))
        failure = failure_kind(error)(
            f"the session of coordinated read {self._request.read.name} ended: the link between "
            f"members {members} failed\n  {type(error).__name__}: {error}\n  to fix: see that "
            "their hosts reach each other, and open it again; it goes on from the last checkpoint"
        )
        failure.__cause__ = error
        self._fail(None, failure)

    def _fail(self, member: int | None, error: BaseException) -> None:
        if self._is_closing:
            return
        with self._lock:
            if not self._lost.done():
                self._lost.set_result((member, error))
        self._judged.stop()
        for client in self._clients:
            client.cancel()
        self._request.on_failure(member, error)


def _stop(client: MemberClient) -> None:
    # One that is gone has ended; any other ends by itself when its stream does.
    with contextlib.suppress(MillraceError):
        client.stop()


class InProcess:
    """Members as threads of this process that reach each other over Flight all the same."""

    def __init__(
        self,
        request: MembersRequest,
        broker: Broker,
        config: Config,
        extract: Extract | None = None,
    ) -> None:
        session = SessionId(
            read=request.read.name, epoch=request.epoch, token=secrets.token_urlsafe(32)
        )
        roots = trusted_roots(os.environ)
        self.served: list[ServedMember] = []
        try:
            for number in range(request.count):
                seat = MemberSeat(
                    number=number,
                    members=request.count,
                    read=request.read,
                    session=session,
                    config=config,
                    folder=os.path.join(request.folder, f"member-{number}"),
                    certificate=own_certificate(os.environ),
                    roots=roots,
                    extract=extract,
                )
                self.served.append(ServedMember(seat, broker))
        except BaseException:
            self._close_served()
            raise
        addresses = [member.address for member in self.served]
        self.members = FlightMembers(
            request, addresses, session=session, config=config, roots=roots
        )

    def start(self) -> None:
        """See `RunningMembers.start`."""
        self.members.start()

    def send(self, slice_: int, message: ToSlice) -> None:
        """See `Members.send`."""
        self.members.send(slice_, message)

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        """See `Members.read`."""
        return self.members.read(member, visible)

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """See `Members.release`."""
        self.members.release(shown, rolled_back)

    def set_disk_limit(self, *, is_on: bool) -> None:
        """See `Members.set_disk_limit`."""
        self.members.set_disk_limit(is_on=is_on)

    def usage(self) -> list[MemberUsage]:
        """See `RunningMembers.usage`."""
        return self.members.usage()

    def close(self) -> None:
        """See `RunningMembers.close`."""
        self.members.close()
        self._close_served()

    def _close_served(self) -> None:
        with ThreadPoolExecutor(max(1, len(self.served))) as pool:
            list(pool.map(ServedMember.close, self.served))


def in_process(broker: Broker, config: Config, extract: Extract | None = None) -> MakeMembers:
    """Members as threads of this process, over Flight."""

    def make(request: MembersRequest) -> RunningMembers:
        return InProcess(request, broker, config, extract)

    return make
