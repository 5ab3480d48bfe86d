"""What a Spark task does for coordinated reads: it is a member, until its session is over.

Invariant: a task ends when its session stops it, is over or is gone. A second copy of a task never
takes the place of the first: the session opens each member once, and a copy that it does not open
waits as long as the first lives, since Spark would end the first when the copy ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from millrace.config import Config
from millrace.durations import ms
from millrace.engine.json_keys import JsonKeys
from millrace.errors import MemberLost
from millrace.execute.task_folders import FOLDER_VARIABLE
from millrace.faults import fault
from millrace.identity.versions import check_versions
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.spark.member_register import Register, RegisteredMember
from millrace.storage.scratch import scratch_folder
from millrace.transport.agent.agent_launch import own_host
from millrace.transport.flight.tls import own_certificate, trusted_roots
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_server import SessionId
from millrace.transport.members.served_member import MemberSeat, ServedMember
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

Batches = Iterator[pa.RecordBatch]
RESULT_SCHEMA: Final = "member long, host string"
_RESULT: Final = pa.schema([("member", pa.int64()), ("host", pa.string())])
_PREFIX: Final = "millrace-member-"
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWork:
    """What every member of a session needs to know."""

    where: JournalAddress
    read: CoordinatedRead
    members: int
    epoch: int
    config: Config
    registered_from: int
    """Where this session's register begins."""
    loopback: bool
    versions: Mapping[str, str]


def member_task(work: MemberWork) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over numbers: each is a member."""

    def run(numbers: Batches) -> Batches:
        check_versions(work.versions)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                context = TaskContext.get()
                assert context is not None, "only Spark runs this"
                be_member(work, number, context.attemptNumber())
                row = {"member": number, "host": socket.gethostname()}
                yield pa.RecordBatch.from_pylist([row], schema=_RESULT)

    return run


def be_member(work: MemberWork, number: int, attempt: int) -> None:
    """Be a member until the session is over."""
    fault("reads.member.start")
    session = SessionId(read=work.read.name, epoch=work.epoch, token=work.where.token)
    with contextlib.ExitStack() as ending:
        broker = join_journals(work.where, work.config)
        ending.callback(broker.close)
        seat = MemberSeat(
            number=number,
            members=work.members,
            read=work.read,
            session=session,
            config=work.config,
            folder=os.path.join(ending.enter_context(own_folder()), "queue"),
            host=own_host(os.environ, loopback=work.loopback),
            certificate=own_certificate(os.environ),
            roots=trusted_roots(os.environ),
            extract=JsonKeys(work.config),
        )
        served = ServedMember(seat, broker)
        ending.callback(served.close)
        register = Register(broker, work.read.name, work.epoch, work.registered_from)
        register.enter(
            RegisteredMember(
                member=number, attempt=attempt, address=served.address, host=socket.gethostname()
            )
        )
        fault("reads.member.registered")
        _wait_to_be_opened(served, register, seat)
        if served.opened.is_set():
            while not served.ended.wait(_POLL_S):
                pass


def _wait_to_be_opened(served: ServedMember, register: Register, seat: MemberSeat) -> None:
    """Wait for the session, twice as long as it waits for others; a copy as long as the first is.

    A task that waits without a limit sees when the session is over.
    """
    wait_ms = 2 * ms(seat.config.reads_members_wait)
    until = time.monotonic() + wait_ms / 1000
    while not served.opened.wait(_POLL_S):
        if register.look(0):
            return
        if time.monotonic() > until and not _is_copy(served, register, seat):
            if register.look(seat.config.reads_stop_ms_max / 1000):
                return  # It was ending just then.
            raise MemberLost(
                f"member {served.number} was not opened by its session in {wait_ms} ms\n"
                "  limit: twice reads_members_wait\n"
                "  to fix: open the session again; raise reads_members_wait if executors "
                "are slow to start"
            )


def _is_copy(served: ServedMember, register: Register, seat: MemberSeat) -> bool:
    """Whether another attempt of this task is the member, and lives."""
    return any(
        _lives(entry.address, seat)
        for entry in register.entered
        if entry.member == served.number and entry.address != served.address
    )


def _lives(address: str, seat: MemberSeat) -> bool:
    client = MemberClient(
        seat.number, address, session=seat.session, config=seat.config, roots=seat.roots
    )
    try:
        return bool(client.stats().streams)
    except MemberLost:
        return False
    finally:
        client.close()


@contextmanager
def own_folder() -> Iterator[str]:
    """A folder of this host for a queue's files; those of members that were killed are swept."""
    parent = os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    with scratch_folder(parent, _PREFIX) as folder:
        yield folder
