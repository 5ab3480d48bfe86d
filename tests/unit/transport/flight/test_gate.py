"""A gate's limits on connections, each at the limit."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.transport.attack_kit import begun_call, eventually, is_closed

from millrace.config import Config
from millrace.transport.flight.first_call import SETTINGS
from millrace.transport.flight.gate import Gate, GuardedPort
from millrace.transport.flight.hpack import Headers

RIGHT = begun_call([(b"authorization", b"right")])
WRONG = begun_call([(b"authorization", b"wrong")])


def refusal(headers: Headers) -> str | None:
    return None if headers.get("authorization") == ["right"] else "wrong"


class Behindhand:
    """Stands where Flight stands: takes connections and keeps them."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()  # Else it takes a connection that nobody closes.
        self._listener.close()
        for connection in self.connections:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self._listener.accept()[0])


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behindhand]:
    with contextlib.closing(Behindhand(tmp_path / "s")) as made:
        yield made


@contextlib.contextmanager
def gate(behind: Behindhand, config: Config) -> Iterator[Gate]:
    made = Gate(
        "127.0.0.1",
        0,
        GuardedPort(flight=behind.path, refusal=refusal, message_bytes_max=1000),
        config,
    )
    try:
        yield made
    finally:
        made.close()
        made.cut()


@contextlib.contextmanager
def connected(gate: Gate, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections, one after the other, each known to the gate."""
    with contextlib.ExitStack() as ending:
        made = []
        for _ in range(count):
            made.append(ending.enter_context(socket.create_connection(("127.0.0.1", gate.port))))
            made[-1].settimeout(30)
            with contextlib.suppress(OSError):
                made[-1].recv(len(SETTINGS))
            made[-1].sendall(sent)
        yield made


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def test_of_connections_without_a_token_the_oldest_goes_when_there_are_too_many(
    behind: Behindhand,
) -> None:
    config = Config(server_unproven_per_address_max=5)
    with gate(behind, config) as made, connected(made, 5) as known:
        assert all(map(is_open, known))
        with connected(made, 1) as more:
            assert is_closed(known[0])
            assert all(map(is_open, [*known[1:], *more]))


def test_connections_without_a_token_go_first_and_those_with_one_stay(behind: Behindhand) -> None:
    config = Config(server_connections_max=4)
    with gate(behind, config) as made, connected(made, 3, RIGHT) as proven:
        eventually(lambda: len(behind.connections) == 3)
        with connected(made, 1) as silent, connected(made, 1, RIGHT) as last:
            assert is_closed(silent[0])
            eventually(lambda: len(behind.connections) == 4)
            with connected(made, 1) as refused:
                assert is_closed(refused[0])
            assert all(map(is_open, [*proven, *last]))


def test_flight_hears_of_a_connection_only_with_a_token(behind: Behindhand) -> None:
    with gate(behind, Config()) as made, connected(made, 3, WRONG) as wrong:
        assert all(map(is_closed, wrong))
        with connected(made, 1, RIGHT):
            eventually(lambda: len(behind.connections) == 1)
            behind.connections[0].settimeout(30)
            got = behind.connections[0].recv(100_000)

    assert got.startswith(b"PRI * HTTP/2.0")
    assert b"right" in got


def test_a_connection_without_a_token_is_closed_in_time(behind: Behindhand) -> None:
    with gate(behind, Config(server_proof_ms_max=50)) as made, connected(made, 2) as silent:
        assert all(map(is_closed, silent))


def test_a_connection_that_stands_still_is_closed_within_a_message_and_not_between_two(
    behind: Behindhand,
) -> None:
    begun = b"\0\0\x09\0\0\0\0\0\1" + b"\0\0\0\0\x64" + b"abcd"
    config = Config(server_silent_ms_max=50)
    with (
        gate(behind, config) as made,
        connected(made, 1, RIGHT) as between,
        connected(made, 1, RIGHT + begun) as within,
    ):
        assert is_closed(within[0])
        assert is_open(between[0])


def test_a_closed_gate_leaves_no_thread_and_its_port_is_free(behind: Behindhand) -> None:
    before = set(threading.enumerate())
    with gate(behind, Config()) as made, connected(made, 3, RIGHT), connected(made, 3):
        port = made.port

    eventually(lambda: set(threading.enumerate()) <= before)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def sockets() -> set[str]:
    """Those that this process has open."""
    links = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
            links.add(os.readlink(path))
    return {link for link in links if link.startswith("socket:")}


def test_a_forked_process_keeps_nothing_open(behind: Behindhand) -> None:
    """Else a port would stay taken, and peers would not hear of the end of a killed process."""
    before = sockets()
    with gate(behind, Config()) as made, connected(made, 1, RIGHT):
        eventually(lambda: len(behind.connections) == 1)
        eventually(lambda: "millrace-relay" in {one.name for one in threading.enumerate()})
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if not child:
            os._exit(min(100, len(sockets() - before)))
        _, status = os.waitpid(child, 0)

    # A connection and its end behind the gate, of the test itself, and the pair that wakes it.
    assert os.waitstatus_to_exitcode(status) == 4
