"""Sessions whose members are reached over Flight, and ways between them that can be cut."""

from __future__ import annotations

import contextlib
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.reads.kit import LONG_S

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session.members_port import MakeMembers, MembersRequest
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.spark.read_member_task import MemberWork
from millrace.spark.read_members import RegisteredMembers
from millrace.transport.members.flight_members import InProcess
from millrace.transport.owner.owner_endpoint import JournalAddress

_MEMBER = """
import pickle, sys
from millrace.spark.read_member_task import be_member
work, number = pickle.loads(bytes.fromhex(sys.argv[1]))
be_member(work, number, 0)
"""


class Opened:
    """A session with members of this process over Flight, and what lies behind it."""

    def __init__(self) -> None:
        self.made: list[InProcess] = []

    def maker(self, broker: Broker, config: Config) -> MakeMembers:
        def make(wanted: MembersRequest) -> InProcess:
            self.made.append(InProcess(wanted, broker, config))
            return self.made[-1]

        return make

    @contextmanager
    def session(
        self,
        broker: Broker,
        folder: Path,
        read: CoordinatedRead,
        config: Config,
        *,
        members: int = 2,
    ) -> Iterator[ReadSession]:
        place = SessionWorkspace(broker, str(folder), config, self.maker(broker, config))
        with ReadSession(place, read, SessionOptions(members=members, holder="test")) as session:
            yield session


class Processes:
    """Runs members as processes of their own."""

    loopback = True

    def __init__(self, folder: Path) -> None:
        self.failure: BaseException | None = None
        self.running: list[subprocess.Popen[bytes]] = []
        self._folder = folder

    def check(self, members: int) -> None:
        """Any number can run."""

    def why_lost(self, error: BaseException) -> BaseException:
        return error

    def start(self, work: MemberWork, on_failure: object = None) -> None:
        del on_failure
        environment = {"MILLRACE_FOLDER": str(self._folder), "PATH": "/usr/bin:/bin"}
        for number in range(work.members):
            given = pickle.dumps((work, number)).hex()
            command = [sys.executable, "-c", _MEMBER, given]
            self.running.append(subprocess.Popen(command, env=environment))

    def slots(self) -> str:
        return "there is no limit"

    def end(self, wait_s: float) -> None:
        """End them; one that is still ending on busy cores has more time than Spark gives it."""
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(wait_s, LONG_S))
            process.kill()
            process.wait()


def as_processes(
    where: JournalAddress, config: Config, folder: Path, made: list[Processes]
) -> MakeMembers:
    def make(wanted: MembersRequest) -> RegisteredMembers:
        made.append(Processes(folder))
        return RegisteredMembers(made[-1], where, config, wanted)

    return make


class Way:
    """Passes bytes on to an address, until it stalls or is cut."""

    def __init__(self, address: str) -> None:
        self._target = int(address.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Pass nothing on any more, and keep connections open."""
        self._flows.clear()

    def cut(self) -> None:
        """End all connections and take no new one."""
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def through(way: Callable[[str], str], number: int, other: int) -> Callable[..., tuple[str, ...]]:
    """Addresses as one member is told them, with the way to another one put in."""

    def told(me: int, addresses: tuple[str, ...]) -> tuple[str, ...]:
        if me != number:
            return addresses
        return tuple(way(each) if n == other else each for n, each in enumerate(addresses))

    return told
