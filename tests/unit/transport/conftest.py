from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.lacking import lacking
from tests.proxy import CuttingProxy
from tests.unit.transport.agent_kit import (
    TOKEN,
    Host,
    Serve,
    Serving,
    is_running,
    make_host,
)

from millrace.config import Config
from millrace.execute.task_folders import FOLDER_VARIABLE
from millrace.storage.local import LocalStore
from millrace.transport.agent import agent_endpoint, agent_launch
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.agent_server import AgentServer, now_ms
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.transport.flight.tls import Certificate


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make_host(tmp_path / "host")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start agents in this process; clients wait no real time between tries."""
    with ExitStack() as ending:

        def start(
            host: Host,
            config: Config | None = None,
            *,
            token: str = TOKEN,
            certificate: Certificate | None = None,
            roots: bytes | None = None,
            sleep: Callable[[float], None] = lambda _: None,
        ) -> Serving:
            limits = config or Config()
            server = AgentServer(
                ListenAddress(host="127.0.0.1", certificate=certificate),
                Hosting.one(host.store.root),
                lease=AgentLease(None, now_ms()),
                config=limits,
                instance="test",
            )
            ending.callback(server.shutdown)
            address = server.address
            agents = Agents(
                token=token,
                config=limits,
                address_of=lambda _: address,
                roots=roots,
                sleep=sleep,
            )
            ending.callback(agents.close)
            return Serving(server, address, agents)

        yield start


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"grpc://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def proxy() -> Iterator[Callable[[str, list[int | None]], CuttingProxy]]:
    made: list[CuttingProxy] = []

    def make(address: str, cuts: list[int | None]) -> CuttingProxy:
        made.append(CuttingProxy(address, cuts))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def certificate_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        lacking("openssl", "openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", os.fspath(key), "-out", os.fspath(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(autouse=True)
def _no_folder_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv(agent_launch.HOST_VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def _end_agents(tmp_path: Path) -> Iterator[None]:
    """End what a test started, by the endpoint files it left."""
    yield
    for path in tmp_path.rglob(agent_endpoint.AGENT_FILE):
        said = agent_endpoint.read(LocalStore(str(path.parent)))
        if said is not None and is_running(said.pid):
            os.kill(said.pid, signal.SIGKILL)
