"""Makes sure that an agent serves a host's folder: uses the running one, or starts one.

Invariant: an agent counts as running only if it answers for this very folder. Of several tasks that
start at once, one starts an agent and the others use it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from millrace import version
from millrace.config import Config
from millrace.errors import AgentUnreachable, UserError
from millrace.ids import FolderId
from millrace.storage import modes
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors
from millrace.transport.agent import agent_endpoint
from millrace.transport.agent.agent_calls import AgentCalls
from millrace.transport.agent.agent_endpoint import Endpoint
from millrace.transport.flight.flight_calls import CallCut, CallRefused

HOST_VARIABLE: Final = "MILLRACE_AGENT_HOST"
LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.02
_LOG: Final = logging.getLogger(__name__)
_LOG_TAIL_BYTES: Final = 2000
_NOWHERE: Final = ("192.0.2.1", 9)

# Kept until they have ended, so that they do not stay behind as zombies.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """The folder that an agent is to serve, and how."""

    folder: FolderId
    store: LocalStore
    service: LocalStore
    host: str
    config: Config


def ensure_agent(request: AgentRequest, calls: AgentCalls) -> str:
    """The address of an agent that serves the folder; it is started if it is missing."""
    _started[:] = [process for process in _started if process.poll() is None]
    address = _service(request, calls) or _answering(request, calls)
    if address is not None:
        return address
    wait_ms = 2 * request.config.agent_start_ms_max
    with agent_endpoint.locked(request.store, agent_endpoint.LOCK_FILE, wait_ms=wait_ms) as is_ours:
        address = _answering(request, calls)
        if address is not None:
            return address
        if not is_ours:
            raise AgentUnreachable(
                f"another task has been starting the agent of {request.store.root} for {wait_ms} ms"
                f"\n  to fix: look at {request.store.path(agent_endpoint.LOG_FILE)}"
            )
        return _start(request, calls)


def own_host(environ: Mapping[str, str], *, loopback: bool) -> str:
    """The address of this host that agents listen on."""
    if environ.get(HOST_VARIABLE):
        return environ[HOST_VARIABLE]
    if loopback:
        return LOOPBACK
    return environ.get("SPARK_LOCAL_IP") or _outward_address()


def _outward_address() -> str:
    """The address that other hosts see, even where the host's own name leads to loopback."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = LOOPBACK
    if not address.startswith("127."):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_NOWHERE)  # Sends nothing; it only chooses a route.
        except OSError:
            return address
        return str(probe.getsockname()[0])


def _service(request: AgentRequest, calls: AgentCalls) -> str | None:
    """The address of a service for the whole host, if one runs."""
    endpoint = agent_endpoint.read(request.service)
    if endpoint is None:
        return None
    try:
        calls.ping(endpoint.address, request.folder)
    except CallCut:
        return None
    except CallRefused as refused:
        raise UserError(
            f"the agent service of {request.service.root} at {endpoint.address} refuses this "
            "workspace\n"
            "  to fix: let it run as this user, or give it --token-file and put the same token\n"
            "  into MILLRACE_TOKEN where the workspace is opened; if no service runs there any\n"
            f"  more, remove {request.service.path(agent_endpoint.AGENT_FILE)}"
        ) from refused
    return endpoint.address


def _answering(request: AgentRequest, calls: AgentCalls) -> str | None:
    """The address of the folder's own agent, if it answers."""
    endpoint = agent_endpoint.read(request.store)
    return endpoint.address if endpoint is not None and _answers(endpoint, request, calls) else None


def _answers(endpoint: Endpoint, request: AgentRequest, calls: AgentCalls) -> bool:
    try:
        return calls.ping(endpoint.address, request.folder).instance == endpoint.instance
    except (CallCut, CallRefused):
        return False


def _start(request: AgentRequest, calls: AgentCalls) -> str:
    before = agent_endpoint.read(request.store)
    process = _spawn(request)
    _started.append(process)
    deadline = time.monotonic() + request.config.agent_start_ms_max / 1000
    while time.monotonic() < deadline:
        endpoint = agent_endpoint.read(request.store)
        if endpoint is not None and endpoint != before and _answers(endpoint, request, calls):
            _LOG.info("agent started for %s at %s", request.store.root, endpoint.address)
            return endpoint.address
        if process.poll() is not None:
            raise _not_started(request, f"it ended with code {process.returncode}")
        time.sleep(_POLL_S)
    process.kill()
    raise _not_started(request, f"no answer in {request.config.agent_start_ms_max} ms")


def _spawn(request: AgentRequest) -> subprocess.Popen[bytes]:
    """Start the process, with nothing of this one's: no session, no files, no working folder."""
    command = [
        sys.executable,
        "-m",
        "millrace.transport.agent.agent_process",
        "--root",
        request.store.root,
    ]
    command += ["--host", request.host, "--config", json.dumps(_changed(request.config))]
    package = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
    log = request.store.path(agent_endpoint.LOG_FILE)
    with (
        storage_errors(f"starting an agent with the log {log}"),
        open(log, "wb", opener=modes.opener) as output,
    ):
        return subprocess.Popen(  # noqa: S603 - our own module, and no part from the network
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=request.store.root,
            env=environ,
            start_new_session=True,
        )


def _changed(config: Config) -> dict[str, Any]:
    """The limits that are not the default ones."""
    default = asdict(Config())
    return {name: value for name, value in asdict(config).items() if value != default[name]}


def _not_started(request: AgentRequest, reason: str) -> AgentUnreachable:
    log = (request.store.read(agent_endpoint.LOG_FILE) or b"")[-_LOG_TAIL_BYTES:]
    tail = "\n    ".join(log.decode(errors="replace").strip().splitlines()) or "empty"
    return AgentUnreachable(
        f"the agent of {request.store.root} did not start: {reason}\n"
        f"  its log, {request.store.path(agent_endpoint.LOG_FILE)}:\n    {tail}\n"
        f"  to fix: what the log says; {HOST_VARIABLE} chooses the address it listens on"
    )
