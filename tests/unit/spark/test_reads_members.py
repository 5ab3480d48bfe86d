"""Members that register: who counts, who is missing, and what a second copy of a task does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.reads.kit import LONG_S, SCHEMA, Q, a_read, alone, next_shown, write
from tests.unit.transport.owner_kit import TOKEN, WORKSPACE, place_at

from millrace.config import Config
from millrace.errors import MemberLost, OwnerUnreachable, ReadsFailed, TaskFailed, UserError
from millrace.journal.core.values import Appended
from millrace.journal.memory import MemoryBroker
from millrace.reads.api import ReadSession
from millrace.reads.session.members_port import MakeMembers
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.spark.member_register import Register, RegisteredMember, journal_name
from millrace.spark.read_member_task import MemberWork, be_member, own_folder
from millrace.spark.read_members import RegisteredMembers, SparkJob, fixed_slots
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_endpoint import JournalAddress

QUICK = Config().with_options(reads_lease=60, reads_members_wait=0.3)
PATIENT = QUICK.with_options(reads_members_wait=60)


@dataclass
class Threads:
    """Runs members as threads that reach the journals as tasks do."""

    wanted: int | None = None
    """How many of them come; None: all."""
    failure: BaseException | None = None
    loopback: bool = True
    register: Callable[[MemberWork], Register] | None = None
    """In which those are entered that come, and do nothing."""
    running: list[threading.Thread] = field(default_factory=list)
    work: MemberWork | None = None

    def check(self, members: int) -> None:
        """Any number can run."""

    def why_lost(self, error: BaseException) -> BaseException:
        return error

    def start(self, work: MemberWork, on_failure: object = None) -> None:
        del on_failure
        self.work = work
        if self.wanted is None:
            for number in range(work.members):
                self.run(number, 0)
        elif self.register is not None:
            for number in range(self.wanted):
                self.register(work).enter(entry(number))

    def run(self, number: int, attempt: int) -> threading.Thread:
        assert self.work is not None
        thread = threading.Thread(target=be_member, args=(self.work, number, attempt), daemon=True)
        self.running.append(thread)
        thread.start()
        return thread

    def slots(self) -> str:
        return "Spark now tells of 7"

    def end(self, wait_s: float) -> None:
        for thread in self.running:
            thread.join(LONG_S)
            assert not thread.is_alive()
        assert wait_s == QUICK.reads_stop_ms_max / 1000


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path / "host"))
    owner = Owner.open(place_at(tmp_path / "mill"))
    owner.broker.create("t/a", SCHEMA)
    yield owner
    owner.close()


def members(owner: Owner, job: Threads, config: Config) -> MakeMembers:
    where = JournalAddress(address=owner.endpoint.address, token=TOKEN, workspace_id=WORKSPACE)
    return lambda wanted: RegisteredMembers(job, where, config, wanted)


def place(owner: Owner, job: Threads, folder: Path, config: Config = PATIENT) -> SessionWorkspace:
    return SessionWorkspace(owner.broker, str(folder), config, members(owner, job, config))


def entry(member: int, attempt: int = 0, address: str = "grpc://here:1") -> RegisteredMember:
    return RegisteredMember(member=member, attempt=attempt, address=address, host="here")


# The register.
def test_only_what_was_said_to_this_session_counts() -> None:
    broker = MemoryBroker()
    Register.begin(broker, "t", 3).enter(entry(0, address="grpc://stale:1"))
    mine = Register.begin(broker, "t", 4)
    stale = Register(broker, "t", 3, mine.at)
    stale.enter(entry(1, address="grpc://stale:2"))
    Register(broker, "t", 4, mine.at).enter(entry(1, address="grpc://mine:1"))
    mine.look(0)
    assert {n: each.address for n, each in mine.members.items()} == {1: "grpc://mine:1"}
    assert not mine.is_over


def test_of_several_attempts_of_a_task_the_last_counts_whoever_spoke_first() -> None:
    broker = MemoryBroker()
    mine = Register.begin(broker, "t", 4)
    for attempt in (1, 2, 0):
        mine.enter(entry(0, attempt, f"grpc://attempt:{attempt}"))
    mine.look(0)
    assert mine.members[0].address == "grpc://attempt:2"


@pytest.mark.parametrize("how", ["closed", "taken over", "deleted"])
def test_a_member_that_was_never_opened_sees_that_its_session_is_over(how: str) -> None:
    broker = MemoryBroker()
    session = Register.begin(broker, "t", 4)
    member = Register(broker, "t", 4, session.at)
    member.look(0)
    assert not member.is_over
    if how == "closed":
        session.end()
    elif how == "taken over":
        Register.begin(broker, "t", 5).enter(entry(0))
    else:
        broker.delete(journal_name("t"))
    member.look(0)
    assert member.is_over


class Restarted(MemoryBroker):
    """An owner that is started again after it has heard of some rows, and before it says so."""

    cuts = 1

    def append(self, *args: Any, **named: Any) -> Appended:  # noqa: ANN401 - handed on
        done = super().append(*args, **named)
        if self.cuts:
            self.cuts -= 1
            raise OwnerUnreachable("the answer is lost")
        return done


def test_what_an_owner_heard_just_before_it_was_started_again_counts_once() -> None:
    broker = Restarted()
    session = Register.begin(broker, "t", 4)
    Register(broker, "t", 4, session.at).enter(entry(0))
    assert not session.look(0)
    assert session.members == {0: entry(0)}
    broker.cuts = 1
    session.end()
    assert session.look(0)


# Members that do not come.
def test_a_session_says_how_many_slots_were_missing_and_which_members_did_not_come(
    owner: Owner, tmp_path: Path
) -> None:
    job = Threads(
        wanted=1, register=lambda work: Register(owner.broker, work.read.name, work.epoch, 0)
    )
    with pytest.raises(ReadsFailed, match=r"(?s)2 of 3 members .*slots missing: 2") as failed:
        ReadSession(
            place(owner, job, tmp_path, QUICK), a_read(), SessionOptions(members=3, holder="test")
        )
    assert "members missing: 1, 2" in str(failed.value)
    assert "reads_members_wait" in str(failed.value)


def test_why_tasks_cannot_run_is_told_at_once(owner: Owner, tmp_path: Path) -> None:
    job = Threads(wanted=0, failure=TaskFailed("no module named millrace"))
    with pytest.raises(TaskFailed, match="no module named millrace"):
        ReadSession(place(owner, job, tmp_path), a_read(), SessionOptions(members=1, holder="test"))


class FakeSpark:
    """A session that says what its master is."""

    def __init__(self, master: str) -> None:
        self.conf = SimpleNamespace(get=lambda _name, _default=None: master)


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("local-cluster[2,3,1024]", 6),
        ("spark://somewhere:7077", None),
        ("yarn", None),
    ],
)
def test_slots_are_known_where_they_never_change(master: str, found: int | None) -> None:
    spark: Any = FakeSpark(master)
    assert fixed_slots(spark, PATIENT) == found


def test_too_few_slots_are_refused_before_anything_starts() -> None:
    spark: Any = FakeSpark("local[3]")
    SparkJob(spark, PATIENT).check(2)
    with pytest.raises(UserError, match=r"(?s)3 members need 4 .*missing: 1.*at most 2 members"):
        SparkJob(spark, PATIENT).check(3)


# Copies.
def test_a_second_copy_of_a_task_waits_and_takes_nobodys_place(
    owner: Owner, tmp_path: Path
) -> None:
    job = Threads()
    with ReadSession(
        place(owner, job, tmp_path), a_read(), SessionOptions(members=2, holder="test")
    ) as session:
        assert job.work is not None
        # For the copy alone the limit is short: it outlasts it, since the first lives.
        job.work = MemberWork(
            **{name: getattr(job.work, name) for name in MemberWork.__slots__ if name != "config"},
            config=QUICK.with_options(reads_members_wait=0.01),
        )
        copy = job.run(1, 1)
        write(owner.broker, "t/a", *[alone(Q, 10 + n, f"row {n}") for n in range(100)])
        assert next_shown(session) == sorted(f"row {n}" for n in range(100))
        copy.join(3)
        assert copy.is_alive()
    assert not any(thread.is_alive() for thread in job.running)


def test_a_task_whose_session_never_comes_gives_up_after_a_named_limit(
    owner: Owner, tmp_path: Path
) -> None:
    work = MemberWork(
        where=JournalAddress(address=owner.endpoint.address, token=TOKEN, workspace_id=WORKSPACE),
        read=a_read(),
        members=1,
        epoch=1,
        config=QUICK.with_options(reads_members_wait=0.01, reads_stop_ms_max=10),
        registered_from=Register.begin(owner.broker, a_read().name, 1).at,
        loopback=True,
        versions={},
    )
    with pytest.raises(MemberLost, match="reads_members_wait"):
        be_member(work, 0, 0)
    assert list((tmp_path / "host").iterdir()) == []


# Folders.
def test_what_a_dead_member_left_is_swept_and_what_a_live_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path))
    dead = tmp_path / "millrace-member-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (tmp_path / "somebody-else-s").mkdir()
    with own_folder() as live:
        assert not dead.exists()
        with own_folder() as second:
            assert os.path.isdir(live)
            assert live != second
    assert os.listdir(tmp_path) == ["somebody-else-s"]
