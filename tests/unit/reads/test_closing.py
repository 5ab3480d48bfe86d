"""Closing sessions: it ends, whatever they are doing, and leaves no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.reads.kit import (
    LONG_S,
    SCHEMA,
    P,
    a_read,
    alone,
    next_shown,
    reading,
    run_of,
    write,
)

from millrace.config import Config
from millrace.errors import ReadsFailed, Retriable
from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.reads.api import ReadSession
from millrace.reads.session.members_port import MembersRequest, RunningMembers
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.spark.source.stream_session import StreamSession, StreamStart
from millrace.spark.source.stream_workspace import StreamWorkspace
from millrace.storage.local import LocalStore
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.wakeup import WorkerThread, join


class StuckBroker(MemoryBroker):
    """Reads that stand still until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading, self.let_go = threading.Event(), threading.Event()

    def read(self, name: str, offset: int, **limits: Any) -> Fetched:  # noqa: ANN401 - as its base
        if name == "t/a":
            self.is_reading.set()
            assert self.let_go.wait(LONG_S)
        return super().read(name, offset, **limits)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    yield broker
    broker.close()


def names() -> set[str]:
    return {each.name for each in threading.enumerate()}


def started(work: Any) -> tuple[WorkerThread, list[BaseException]]:  # noqa: ANN401
    """Run it in a thread; what it raises is in the list."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    worker = WorkerThread(run, "test")
    worker.start()
    return worker, errors


def test_no_thread_of_a_closed_session_is_left(broker: MemoryBroker, tmp_path: Path) -> None:
    before = names()
    session = reading(broker, tmp_path, members=3)
    inside = {"slice-0", "slice-2", "follow-0", "follow-2", "reads-lease", "reads-watch"}
    assert inside <= names()
    session.close()
    assert names() == before


def test_a_thread_that_does_not_stop_is_an_error_and_the_lease_is_given_back(
    tmp_path: Path,
) -> None:
    broker = StuckBroker()
    broker.create("t/a", SCHEMA)
    write(broker, "t/a", alone(P, 1, "a"))
    config = Config().with_options(thread_stop_ms_max=50)
    session = reading(broker, tmp_path, members=1, config=config)
    assert broker.is_reading.wait(LONG_S)
    with pytest.raises(Retriable, match=r"thread slice-0 did not end in 50 ms\n  limit: thread_st"):
        session.close()
    assert broker.leases("reads/") == ()
    broker.let_go.set()
    session.close()
    assert "slice-0" not in names()
    broker.close()


def test_a_slice_that_nobody_wakes_looks_by_itself(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.wakeup.WakeUp.ring", lambda _wake: None)
    config = Config().with_options(thread_sleep_ms_max=5)
    with reading(broker, tmp_path, members=2, config=config) as session:
        write(broker, "t/a", alone(P, 1, "a"))
        assert next_shown(session) == ["a"]


def test_a_caller_that_waits_for_a_checkpoint_is_told_of_the_close(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    session = reading(broker, tmp_path)
    waiting, errors = started(session.next_checkpoint)
    session.close()
    join([waiting], 60_000, "")
    assert [type(error) for error in errors] == [ReadsFailed]
    assert "was closed\n  found: a call after close()" in str(errors[0])


def test_a_restarting_session_that_another_thread_closes_is_not_opened_again(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    config = Config().with_options(reads_restart_wait_ms=1)
    session = reading(broker, tmp_path, members=1, restart=True, config=config)
    waiting, errors = started(session.next_checkpoint)
    session.close()
    join([waiting], 60_000, "")
    assert ["was closed" in str(error) for error in errors] == [True]
    assert broker.leases("reads/") == ()
    with pytest.raises(ReadsFailed, match="was closed"):
        session.next_checkpoint(0)
    with pytest.raises(ReadsFailed, match="was closed"):
        session.status()


def test_a_session_that_is_being_opened_when_it_is_closed_is_closed_too(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    is_opening, go_on = threading.Event(), threading.Event()

    config = Config().with_options(reads_restart_wait_ms=1)
    threads = as_threads(broker, config)
    opened: list[MembersRequest] = []

    def make_members(request: MembersRequest) -> RunningMembers:
        opened.append(request)
        if len(opened) > 1:
            is_opening.set()
            assert go_on.wait(LONG_S)
        return threads(request)

    workspace = SessionWorkspace(broker, str(tmp_path), config, make_members)
    options = SessionOptions(members=1, holder="test", restart=True)
    session = ReadSession(workspace, a_read(), options)
    waiting, errors = started(session.next_checkpoint)
    run_of(session).fail(None, ReadsFailed("it broke"))
    assert is_opening.wait(LONG_S)
    session.close()
    go_on.set()
    join([waiting], 60_000, "")
    assert ["was closed" in str(error) for error in errors] == [True]
    assert broker.leases("reads/") == ()


def test_a_long_wait_before_a_restart_ends_with_a_close(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    config = Config().with_options(
        reads_restart_wait_ms=3_600_000, reads_restart_wait_ms_max=3_600_000
    )
    session = reading(broker, tmp_path, members=1, restart=True, config=config)
    run_of(session).fail(None, ReadsFailed("it broke"))
    waiting, errors = started(session.next_checkpoint)
    while session._failures == 0:
        threading.Event().wait(0.001)
    session.close()
    join([waiting], 60_000, "")
    assert ["was closed" in str(error) for error in errors] == [True]
    assert session.restarts == 0


def test_a_stream_that_is_closed_tells_whoever_waits_for_its_next_look(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    before = names()
    config = Config().with_options(stream_wait_ms=3_600_000)
    joined = cast("JoinedBroker", broker)
    place = StreamWorkspace(
        LocalStore(str(tmp_path)), "a token of the tests", "127.0.0.1", joined, config
    )
    stream = StreamSession(place, a_read(), SCHEMA, members=1, start=StreamStart(done=0, begun=0))
    stream.take_ahead()
    waiting, errors = started(stream.settled)
    while not stream._looks_begun:
        threading.Event().wait(0.001)
    stream.close()
    join([waiting], 60_000, "")
    assert [type(error) for error in errors] == [ReadsFailed]
    assert names() == before
