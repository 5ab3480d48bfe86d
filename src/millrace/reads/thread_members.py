"""Members as threads of this process, which hand each other messages directly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import MillraceError, ReadsFailed, UserError
from millrace.journal.broker import Broker
from millrace.reads.member import Member
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.routing import Extract
from millrace.reads.model.session_messages import ToSession, ToSlice
from millrace.reads.queue.queue_messages import Flush, QueueRows, Reply
from millrace.reads.session.failed_reads import unreadable_rows
from millrace.reads.session.members_port import MakeMembers, MemberUsage

OnMessage = Callable[[int, ToSession], None]
OnFailure = Callable[[int, BaseException], None]

_DISK_ERRORS: Final = (MillraceError, pa.ArrowException, OSError)
"""How a queue fails."""


@dataclass(frozen=True, slots=True)
class _ThreadLinks:
    """The receivers of one member's slice."""

    members: ThreadMembers
    number: int

    def to_queue(self, queue: int, message: QueueRows | Flush) -> None:
        """Hand it to the queue, here and now."""
        self.members.member(queue).on_rows(self.number, message)

    def to_session(self, message: ToSession) -> None:
        """Hand it to the session."""
        self.members.on_message(self.number, message)


class ThreadMembers:
    """All members of a session in this process."""

    def __init__(
        self,
        *,
        read: CoordinatedRead,
        count: int,
        broker: Broker,
        folder: str,
        on_message: OnMessage,
        on_failure: OnFailure,
        config: Config,
        extract: Extract | None = None,
    ) -> None:
        self.on_message = on_message
        self._on_failure = on_failure
        self._members = [
            Member(
                number=number,
                members=count,
                read=read,
                broker=broker,
                folder=os.path.join(folder, f"member-{number}"),
                links=_ThreadLinks(self, number),
                reply=self._replies(number),
                failed=self._failing(on_failure, number),
                config=config,
                extract=extract,
            )
            for number in range(count)
        ]

    def start(self) -> None:
        """Begin to work."""
        for member in self._members:
            member.start()

    def member(self, number: int) -> Member:
        """The member of this number."""
        if not 0 <= number < len(self._members):
            raise UserError(
                f"there is no member {number}\n  to fix: give 0 to {len(self._members) - 1}"
            )
        return self._members[number]

    def send(self, slice_: int, message: ToSlice) -> None:
        """Send a message to a slice."""
        self._members[slice_].tell(message)

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The rows of a member's queue that are visible, in order."""
        try:
            return self._guarded(member, self.member(member).read(visible))
        except _DISK_ERRORS as error:
            raise self._unreadable(member, error) from error

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """Let every queue free the rows that are shown.

        The rows are committed by now. So a queue that fails ends the session, and not this call.
        """
        with contextlib.suppress(*_DISK_ERRORS):
            self._each(lambda member: member.release(shown, rolled_back))

    def set_disk_limit(self, *, is_on: bool) -> None:
        """Have every queue keep to its disk limit, or accept rows beyond it."""
        self._each(lambda member: member.set_disk_limit(is_on=is_on))

    def usage(self) -> list[MemberUsage]:
        """What each member takes on disk and has sent."""
        return [MemberUsage(member.used_bytes(), member.sent()) for member in self._members]

    def close(self) -> None:
        """Stop them all and drop their files."""
        for member in self._members:
            member.stop()
        for member in self._members:
            member.close()

    def _each(self, act: Callable[[Member], None]) -> None:
        for member in self._members:
            try:
                act(member)
            except _DISK_ERRORS as error:
                self._on_failure(member.number, error)
                raise

    def _guarded(self, member: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except _DISK_ERRORS as error:
            raise self._unreadable(member, error) from error

    def _unreadable(self, member: int, error: Exception) -> ReadsFailed:
        self._on_failure(member, error)
        return unreadable_rows(member, error)

    def _replies(self, queue: int) -> Callable[[int, Reply], None]:
        def reply(stream: int, answer: Reply) -> None:
            self._members[stream].on_reply(queue, answer)

        return reply

    @staticmethod
    def _failing(on_failure: OnFailure, number: int) -> Callable[[BaseException], None]:
        return lambda error: on_failure(number, error)


def as_threads(broker: Broker, config: Config, extract: Extract | None = None) -> MakeMembers:
    """Members as threads of this process."""
    return lambda request: ThreadMembers(
        read=request.read,
        count=request.count,
        broker=broker,
        folder=request.folder,
        on_message=request.on_message,
        on_failure=request.on_failure,
        config=config,
        extract=extract,
    )
