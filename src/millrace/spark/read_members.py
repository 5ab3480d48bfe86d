"""Members of coordinated reads as Spark tasks, started and ended by the process of the session.

They are plain tasks of one Spark job, which register with the session and are then reached over
Flight. Invariant: when `close` has returned, the job has ended or Spark was asked to end it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import MemberLost, MillraceError, PeerGone, ReadsFailed, UserError
from millrace.identity.versions import versions
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.session_messages import ToSlice
from millrace.reads.session.members_port import (
    MakeMembers,
    MembersRequest,
    MemberUsage,
    RunningMembers,
)
from millrace.spark.member_register import Register
from millrace.spark.read_member_task import RESULT_SCHEMA, MemberWork, member_task
from millrace.spark.session import is_local, slots
from millrace.spark.spark_presence import gone, pulse_of, setting
from millrace.spark.spark_tasks import run_tasks
from millrace.transport.flight.tls import trusted_roots
from millrace.transport.members.flight_members import FlightMembers
from millrace.transport.members.member_server import SessionId
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

_FREE_SLOTS: Final = 1
"""Members run as long as their session, and other work needs a slot, too."""
_LOOK_S: Final = 0.2


def on_spark(spark: SparkSession, where: JournalAddress, config: Config) -> MakeMembers:
    """Members as Spark tasks."""

    def make(request: MembersRequest) -> RunningMembers:
        return RegisteredMembers(SparkJob(spark, config), where, config, request)

    return make


class MemberJob(Protocol):
    """Runs members somewhere."""

    failure: BaseException | None
    """Why it ended, if it did."""
    loopback: bool
    """Whether all members run on this machine."""

    def check(self, members: int) -> None:
        """Raise if it is known that so many can never run."""

    def start(self, work: MemberWork, on_failure: Callable[[BaseException], None]) -> None:
        """Begin to run all members; they say themselves where they are.

        `on_failure` is called when what runs them fails.
        """

    def why_lost(self, error: BaseException) -> BaseException:
        """Why a member was lost: what runs all of them may be gone."""

    def slots(self) -> str:
        """How many members can run at once, if known, in words."""

    def end(self, wait_s: float) -> None:
        """Wait for members that were stopped, then end the others."""


class RegisteredMembers:
    """Members that a job starts, and that enter their address in a register."""

    def __init__(
        self, job: MemberJob, where: JournalAddress, config: Config, request: MembersRequest
    ) -> None:
        self._job = job
        self._where = where
        self._config = config
        self._request = replace(request, on_failure=self._on_failure)
        self._tell_failure = request.on_failure
        self._broker = join_journals(where, config)
        self._flight: FlightMembers | None = None
        self._register: Register | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start them, wait until all have registered, and open every stream."""
        request, config = self._request, self._config
        self._job.check(request.count)
        self._register = Register.begin(self._broker, request.read.name, request.epoch)
        self._job.start(
            MemberWork(
                where=self._where,
                read=request.read,
                members=request.count,
                epoch=request.epoch,
                config=config,
                registered_from=self._register.at,
                loopback=self._job.loopback,
                versions=versions(),
            ),
            lambda error: self._on_failure(None, error),
        )
        self._wait_for_all(self._register)
        members = self._register.members
        self._flight = FlightMembers(
            request,
            [members[number].address for number in range(request.count)],
            session=SessionId(read=request.read.name, epoch=request.epoch, token=self._where.token),
            config=config,
            roots=trusted_roots(os.environ),
        )
        self._flight.start()

    def send(self, slice_: int, message: ToSlice) -> None:
        """See `Members.send`."""
        self._open().send(slice_, message)

    def read(self, member: int, visible: Visible) -> Iterator[pa.RecordBatch]:
        """See `Members.read`."""
        return self._open().read(member, visible)

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """See `Members.release`."""
        self._open().release(shown, rolled_back)

    def set_disk_limit(self, *, is_on: bool) -> None:
        """See `Members.set_disk_limit`."""
        self._open().set_disk_limit(is_on=is_on)

    def usage(self) -> list[MemberUsage]:
        """See `RunningMembers.usage`."""
        return self._open().usage()

    def close(self) -> None:
        """Stop them over Flight; those that do not end in time are ended by the job."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._flight is not None:
                self._flight.close()
            if self._register is not None:
                # Members that were opened are stopped; others end after a while without a word.
                with contextlib.suppress(PeerGone):
                    self._register.end()
        finally:
            self._job.end(self._config.reads_stop_ms_max / 1000)
            self._broker.close()

    # Inside.
    def _open(self) -> FlightMembers:
        assert self._flight is not None, "members that were not started"
        return self._flight

    def _on_failure(self, member: int | None, error: BaseException) -> None:
        if self._is_closed:
            return
        why = self._job.why_lost(error)
        self._tell_failure(member if why is error else None, why)

    def _wait_for_all(self, register: Register) -> None:
        limit_ms = ms(self._config.reads_members_wait)
        until = time.monotonic() + limit_ms / 1000
        count = self._request.count
        while len(register.members) < count:
            if self._job.failure is not None:
                raise self._job.failure
            if register.is_over:
                raise ReadsFailed(
                    f"another session of {self._request.read.name} was opened meanwhile\n"
                    "  to fix: use that session, or close it and open this one again"
                )
            if time.monotonic() > until:
                raise self._missing(set(range(count)) - set(register.members), limit_ms)
            register.look(_LOOK_S)

    def _missing(self, who: set[int], limit_ms: int) -> ReadsFailed:
        names = ", ".join(map(str, sorted(who)))
        return ReadsFailed(
            f"{len(who)} of {self._request.count} members of {self._request.read.name} did not "
            f"come in {limit_ms} ms\n  slots missing: {len(who)}; {self._job.slots()}\n"
            f"  members missing: {names}\n  limit: reads_members_wait\n"
            "  to fix: give Spark more cores, end other work, or ask for fewer members"
        )


class SparkJob:
    """One Spark job with a task for each member."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self.failure: BaseException | None = None
        self.loopback = is_local(spark, config)
        self._spark, self._config = spark, config
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()

    def check(self, members: int) -> None:
        """See `MemberJob.check`."""
        slots = fixed_slots(self._spark, self._config)
        needed = members + _FREE_SLOTS
        if slots is not None and slots < needed:
            raise UserError(
                f"{members} members need {needed} task slots, one of them for other work, and "
                f"Spark has {slots}\n  slots missing: {needed - slots}\n  to fix: give Spark "
                f"{needed} cores, or ask for at most {max(0, slots - _FREE_SLOTS)} members"
            )

    def start(self, work: MemberWork, on_failure: Callable[[BaseException], None]) -> None:
        """See `MemberJob.start`."""
        self._thread = threading.Thread(
            target=self._run, args=(work, on_failure), name="millrace-members", daemon=True
        )
        self._thread.start()

    def why_lost(self, error: BaseException) -> BaseException:
        """See `MemberJob.why_lost`: checks whether Spark is there."""
        if not isinstance(error, MemberLost):
            return error
        reason = pulse_of(self._spark).ask_now(self._config.reads_stop_ms_max / 1000)
        return error if reason is None else gone(reason)

    def slots(self) -> str:
        """See `MemberJob.slots`."""
        return f"Spark now tells of {slots(self._spark, self._config)}, over all its work"

    def end(self, wait_s: float) -> None:
        """See `MemberJob.end`."""
        if self._thread is not None:
            self._thread.join(wait_s)
            self._cancelled.set()
            self._thread.join(wait_s)

    def _run(self, work: MemberWork, on_failure: Callable[[BaseException], None]) -> None:
        count, function = work.members, member_task(work)
        try:
            run_tasks(
                self._spark,
                self._config,
                count,
                function,
                RESULT_SCHEMA,
                title=f"read {work.read.name}, {count} members",
                watch=self._watch,
            )
        except _MembersCancelled:
            return
        except BaseException as error:  # noqa: BLE001 - the session raises it
            self.failure = error
        else:
            self.failure = MillraceError(
                "the Spark tasks of all members have ended\n"
                "  to fix: open the session again; the executors' logs say why they ended"
            )
        on_failure(self.failure)

    def _watch(self) -> None:
        if self._cancelled.is_set():
            raise _MembersCancelled


class _MembersCancelled(Exception):
    """Ends a Spark job that is no longer needed."""


def fixed_slots(spark: SparkSession, config: Config) -> int | None:
    """How many tasks can run at once; None where that may change, or is not known yet."""
    master = setting(spark, config, "spark.master")
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster is not None:
        return int(cluster[1]) * int(cluster[2])
    return slots(spark, config) if re.match(r"local(\[|$)", master) else None
