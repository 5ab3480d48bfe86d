"""Rings with the followers of a host: one read for all its processes, also when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.unit.transport.owner_kit import QUICK, SCHEMA, WORKSPACE, client_of, column, place_at

from millrace.errors import UserError
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.streams.host_rings import rings_folder

HOST = QUICK.with_options(live_beat_ms=20, live_watch_ms=20, live_rings="host")
COUNT = 300
FOLLOW = """
import sys
from tests.unit.transport.streams.test_host_rings import HOST, client_at
broker = client_at(sys.argv[1])
for fetched in broker.follow("a"):
    for x in fetched.rows()["x"].to_pylist():
        print(x, flush=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path / "host"))
    return tmp_path / "host"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner.open(place_at(tmp_path / "mill", HOST))
    made.broker.create("a", SCHEMA)
    yield made
    made.close()


def client_at(address: str) -> JoinedBroker:
    class At:
        class endpoint:  # noqa: N801 - stands for a value
            pass

    At.endpoint.address = address  # type: ignore[attr-defined]
    return client_of(At, HOST)  # type: ignore[arg-type]


def test_followers_of_two_processes_share_the_reads_of_one(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = JoinedBroker.read

    def counted(self: JoinedBroker, name: str, offset: int, **how: Any) -> object:  # noqa: ANN401
        reads.append(offset)
        return read(self, name, offset, **how)

    monkeypatch.setattr(JoinedBroker, "read", counted)
    clients = [client_of(owner, HOST) for _ in range(3)]
    streams = [client.follow("a") for client in clients]
    with ThreadPoolExecutor(3) as pool:
        for number in range(5):
            owner.broker.append("a", column(number))
            found = [fetched.rows()["x"].to_pylist() for fetched in pool.map(next, streams)]
            assert found == [[number]] * 3
    hosting = [client for client in clients if client._rings._hosting is not None]
    assert len(hosting) == 1
    assert set(hosting[0]._rings._hosting.live.rings().values()) == {3}  # type: ignore[union-attr]
    assert len([offset for offset in reads if offset in range(5)]) <= 2 * 5
    assert owner.server.live.rings() == {}, "the owner serves nobody"
    for client in clients:
        client.close()


def test_a_host_whose_ring_process_is_killed_goes_on_without_a_gap_or_a_double(
    owner: Owner, folder: Path
) -> None:
    """Any of the followers takes the rings over; each continues at its own offset."""
    environment = {**os.environ, "MILLRACE_FOLDER": str(folder)}
    command = [sys.executable, "-c", FOLLOW, owner.endpoint.address]
    followers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found: list[list[int]] = [[], [], []]
    arrived = threading.Condition()

    def gather(which: int) -> None:
        stdout = followers[which].stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                with arrived:
                    found[which].append(int(line))
                    arrived.notify_all()

    threads = [threading.Thread(target=gather, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()

    def wait_for(is_so: Callable[[], bool]) -> None:
        with arrived:
            assert arrived.wait_for(is_so, 60), found

    alive = [0, 1, 2]
    try:
        for begin in range(0, COUNT, 100):
            for number in range(begin, begin + 100):
                owner.broker.append("a", column(number))
                if number == begin + 50 and begin:
                    holder = _lock_holder(folder, {n: followers[n].pid for n in alive})
                    os.kill(followers[holder].pid, signal.SIGKILL)
                    alive.remove(holder)
            wait_for(lambda last=begin + 100: all(len(found[n]) >= last for n in alive))  # type: ignore[misc]
    finally:
        for process in followers:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join(60)
    assert len(alive) == 1
    for which in range(3):
        assert found[which] == list(range(len(found[which])))
    assert found[alive[0]] == list(range(COUNT))


FORK = """
import os, sys, time
from tests.unit.transport.streams.test_host_rings import client_at
broker = client_at(sys.argv[1])
next(broker.follow("a"))
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""


def test_a_fork_of_the_ring_process_does_not_keep_its_lock(owner: Owner, folder: Path) -> None:
    owner.broker.append("a", column(1))
    environment = {**os.environ, "MILLRACE_FOLDER": str(folder)}
    command = [sys.executable, "-c", FORK, owner.endpoint.address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        try:
            client = client_of(owner, HOST)
            assert next(client.follow("a")).rows()["x"].to_pylist() == [1]
            assert client._rings._hosting is not None
            client.close()
        finally:
            os.kill(child, signal.SIGKILL)


def _lock_holder(folder: Path, pids: dict[int, int]) -> int:
    """Which process has the rings, as the kernel tells it."""
    inode = (folder / WORKSPACE / "rings.lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[5].endswith(f":{inode}"):
            return next(n for n, pid in pids.items() if pid == int(fields[4]))
    raise AssertionError("nobody has the rings")


def test_nobody_follows_at_a_host_without_the_token(owner: Owner) -> None:
    client = client_of(owner, HOST)
    owner.broker.append("a", column(1))
    next(client.follow("a"))
    hosting = client._rings._hosting
    assert hosting is not None
    stranger = fl.FlightClient(hosting._server.address)
    with pytest.raises(pa.ArrowException):
        stranger.do_get(fl.Ticket(b"{}")).read_all()
    stranger.close()
    client.close()


def test_a_folder_that_others_can_write_is_refused(folder: Path) -> None:
    (folder / WORKSPACE).mkdir(parents=True)
    (folder / WORKSPACE).chmod(0o777)
    with pytest.raises(UserError, match="not this user's alone"):
        rings_folder(WORKSPACE)
