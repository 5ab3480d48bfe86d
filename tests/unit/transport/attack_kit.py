"""Attacks on a server, and what has to hold after each of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
from tests.unit.transport.attacked import READ, SESSION
from tests.unit.transport.owner_kit import TOKEN, WORKSPACE, all_values

from millrace.config import MIB, Config
from millrace.ids import FolderId
from millrace.reads.live.follow_requests import FollowStarted, follow_request
from millrace.transport.agent import agent_messages
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.first_call import PREFACE, SETTINGS
from millrace.transport.members.member_client import MemberClient
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.owner.owner_links import OwnerConnections
from millrace.transport.owner.owner_server import WORKSPACE_HEADER
from millrace.transport.streams.follow_messages import decode_message, encode_request
from millrace.transport.streams.stream_server import (
    STREAM_HEADER,
    StreamAddress,
    StreamShare,
    fetch,
)

KINDS = ("owner", "agent", "member", "live", "stream")
MEMORY_RISE_BYTES_MAX = 48 * MIB
"""How much more memory than before a server may have had at any time during an attack."""
WAIT_S = 30.0
"""How long to wait for what has to happen sooner."""
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server of the process that is attacked."""

    kind: str
    address: str
    folder: str
    process: subprocess.Popen[str]
    root: Path
    config: Config
    roots: bytes | None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def is_tls(self) -> bool:
        return self.roots is not None

    def headers(self, token: str = TOKEN) -> Headers:
        """What a proper client of this server shows."""
        about = {
            "owner": (WORKSPACE_HEADER, WORKSPACE),
            "live": (WORKSPACE_HEADER, WORKSPACE),
            "agent": (agent_messages.FOLDER_HEADER, self.folder),
            "member": ("x-millrace-reads", f"{SESSION.read}/{SESSION.epoch}"),
            "stream": (STREAM_HEADER, READ),
        }
        name, value = about[self.kind]
        return [(b"authorization", f"Bearer {token}".encode()), (name.encode(), value.encode())]

    def raw(self) -> socket.socket:
        """A connection without anything on it; with TLS after the handshake."""
        plain = socket.create_connection(("127.0.0.1", self.port))
        plain.settimeout(WAIT_S)
        if not self.is_tls:
            return plain
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(plain)

    @contextmanager
    def client(self, address: str | None = None) -> Iterator[fl.FlightClient]:
        with contextlib.closing(
            fl.FlightClient(
                address or self.address,
                tls_root_certs=self.roots,
                generic_options=[("grpc.use_local_subchannel_pool", 1)],
            )
        ) as client:
            yield client

    def serve_properly(self) -> object:
        """What a proper client gets, the same each time."""
        return _PROPER[self.kind](self)

    def files(self) -> dict[str, int]:
        """Everything at rest, by path, with its size; not the ledger's own log, nor counts."""
        return {
            str(path.relative_to(self.root)): path.stat().st_size
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.endswith(("-wal", "-shm"))
            if path.parent.name != "metrics"
        }

    def open_files(self) -> int:
        """Without those of the ledger, which keeps the connections of readers for later ones."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        names = []
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
                names.append(os.readlink(path))
        return sum("/ledger.sqlite" not in name for name in names)

    def memory(self, name: str) -> int:
        """`VmRSS` or `VmHWM`, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(name))
        return int(line.split()[1]) * 1024

    @contextmanager
    def attacked(self, memory_rise_max: int = MEMORY_RISE_BYTES_MAX) -> Iterator[None]:
        """Afterwards everything has to be as before."""
        proper = self.serve_properly()
        files, memory = self.files(), self.memory("VmRSS")
        open_files = self.open_files()
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # Begins the peak anew.
        yield
        assert self.serve_properly() == proper
        assert self.process.poll() is None
        rise = self.memory("VmHWM") - memory
        assert rise < memory_rise_max, f"memory rose by {rise / MIB:.0f} MiB"
        eventually(lambda: self.open_files() <= open_files)
        assert self.files() == files


class Recorder:
    """Passes connections on to a server, and keeps what clients sent on each."""

    def __init__(self, port: int) -> None:
        self.sent: list[bytearray] = []
        self._ends: list[socket.socket] = []
        self._ended = threading.Semaphore(0)
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all of it, when clients have closed their connections."""
        self._listener.close()
        for _ in self._ends:
            assert self._ended.acquire(timeout=WAIT_S)
        for end in self._ends:
            end.close()

    def replay(self) -> None:
        """Send it all again, each connection's bytes on a new one."""
        for sent in list(self.sent):
            with socket.create_connection(("127.0.0.1", self._target)) as connection:
                connection.settimeout(WAIT_S)
                with contextlib.suppress(OSError):
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                assert is_closed(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.sent.append(bytearray())
                self._ends += [near, far]
                for source, sink, kept in ((near, far, self.sent[-1]), (far, near, bytearray())):
                    args = (source, sink, kept)
                    threading.Thread(target=self._pass_on, args=args, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ended.release()


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def attacked_process(
    folder: Path, config: Config, tls: tuple[Path, Path] | None
) -> Iterator[Callable[[str], Target]]:
    """A process with all servers; gives each by its kind."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if tls is not None:
        environ |= {"MILLRACE_TLS_CERT": str(tls[0]), "MILLRACE_TLS_KEY": str(tls[1])}
    default = Config()
    changed = {
        name: getattr(config, name)
        for name in Config.__dataclass_fields__
        if getattr(config, name) != getattr(default, name)
    }
    command = [sys.executable, "-m", "tests.unit.transport.attacked", str(folder)]
    process = subprocess.Popen(
        [*command, json.dumps(changed)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield lambda kind: Target(
            kind=kind,
            address=said[kind],
            folder=said["agent_folder"],
            process=process,
            root=folder,
            config=config,
            roots=None if tls is None else tls[0].read_bytes(),
        )
    finally:
        process.kill()
        process.communicate()


def every_call(
    client: fl.FlightClient, headers: Headers, body: bytes
) -> list[Callable[[], object]]:
    """Each of Flight's calls, with this body."""
    options = fl.FlightCallOptions(headers=headers, timeout=WAIT_S)
    schema = pa.schema([("bytes", pa.large_binary())])

    def put() -> None:
        descriptor = fl.FlightDescriptor.for_command(b"{}")
        writer, reader = client.do_put(descriptor, schema, options)
        writer.write_batch(pa.record_batch([pa.array([body], pa.large_binary())], schema=schema))
        writer.done_writing()
        reader.read()
        writer.close()

    def exchange() -> None:
        descriptor = fl.FlightDescriptor.for_command(b"{}")
        writer, reader = client.do_exchange(descriptor, options)
        writer.begin(schema)
        writer.write_batch(pa.record_batch([pa.array([body], pa.large_binary())], schema=schema))
        writer.done_writing()
        reader.read_chunk()
        writer.close()

    return [
        lambda: list(client.do_action(fl.Action("list", body), options)),
        lambda: list(client.do_get(fl.Ticket(body), options)),
        put,
        exchange,
    ]


def begun_call(headers: Headers) -> bytes:
    """The first bytes of a call, up to its headers, as a client of another make might send them."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/arrow.flight.protocol.FlightService/DoAction"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *headers,
    ]
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )
    acknowledged = b"\0\0\0\4\1\0\0\0\0"
    header = len(block).to_bytes(3, "big") + b"\1\4" + (1).to_bytes(4, "big")
    return PREFACE + SETTINGS + acknowledged + header + block


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other end closes a connection; whatever it sends is passed over."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def _owner(target: Target) -> object:
    where = JournalAddress(address=target.address, token=TOKEN, workspace_id=WORKSPACE)
    with contextlib.closing(join_journals(where, target.config)) as broker:
        return all_values(broker, "a")


def _live(target: Target) -> object:
    where = JournalAddress(address=target.address, token=TOKEN, workspace_id=WORKSPACE)
    flight = OwnerConnections(where, target.config, target.roots)
    ticket = encode_request(follow_request("a"))
    received = flight.receive(target.address, ticket, timeout_ms=30_000, silent_ms=30_000)
    with contextlib.closing(received) as stream:
        opened = decode_message(next(stream))
    flight.close()
    return isinstance(opened, FollowStarted)


def _agent(target: Target) -> object:
    agents = Agents(
        token=TOKEN,
        config=target.config,
        address_of=lambda _: target.address,
        roots=target.roots,
    )
    with contextlib.closing(agents):
        return agents.ping(FolderId(target.folder))


def _member(target: Target) -> object:
    client = MemberClient(
        0, target.address, session=SESSION, config=target.config, roots=target.roots
    )
    with contextlib.closing(client):
        return client.stats()


def _stream(target: Target) -> object:
    where = StreamAddress(path="/none", read=READ, token=TOKEN, planned=target.address)
    piece = StreamShare(member=1, members=2, start=0, end=5)
    return [batch.to_pylist() for batch in fetch(where, piece, target.roots)]


_PROPER = {"owner": _owner, "live": _live, "agent": _agent, "member": _member, "stream": _stream}
