"""The process of an agent: it serves until its lease runs out or a signal comes.

`python -m millrace.transport.agent.agent_process` is how a task starts one; `millrace agent` runs
the same as a service. Invariant: it writes its address once it answers, and removes the address
when it ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.faults import fault
from millrace.storage.local import LocalStore
from millrace.transport.agent import agent_endpoint
from millrace.transport.agent.agent_endpoint import Endpoint
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.agent_server import AgentServer, now_ms
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.transport.flight.tls import Certificate, own_certificate
from millrace.wakeup import WakeUp, within

AGENT_STOP_MS_MAX: Final = 5_000
"""How long an ending agent waits for calls that are on their way."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What an agent serves, where it listens and for how long."""

    folder: str
    hosting: Hosting
    host: str
    port: int
    config: Config
    lease_ms: int | None
    certificate: Certificate | None = None


def run(
    agent: Agent, stop: WakeUp, *, started: Callable[[Endpoint], None] = lambda _: None
) -> None:
    """Serve until it is stopped, the lease runs out, or nothing is left to serve."""
    store = LocalStore(agent.folder)
    lease = AgentLease(agent.lease_ms, now_ms())
    instance = secrets.token_hex(16)
    server = AgentServer(
        ListenAddress(host=agent.host, port=agent.port, certificate=agent.certificate),
        agent.hosting,
        lease=lease,
        config=agent.config,
        instance=instance,
    )
    try:
        fault("agent.start.before_endpoint")
        endpoint = Endpoint(server.address, os.getpid(), instance)
        agent_endpoint.write(store, endpoint)
        _LOG.info("agent of %s serves at %s", agent.folder, endpoint.address)
        started(endpoint)
        tick_ms = min(1000, (agent.lease_ms or 1000) // 4 + 1)
        while stop.sleep(tick_ms / 1000):
            if lease.on_tick(now_ms()) or (agent.lease_ms is not None and agent.hosting.is_empty()):
                break
    finally:
        agent_endpoint.remove(store, instance)
        _LOG.info("agent of %s stops", agent.folder)
        within(server.shutdown, AGENT_STOP_MS_MAX, "millrace-agent-end")


def stop_on_signals() -> WakeUp:
    """Is stopped by SIGTERM and SIGINT.

    A plain `Event` would hang if the signal came while the main thread holds the event's lock.
    """
    stop = WakeUp()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.stop())
    return stop


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one workspace's folder on this host, as a task asks for it."""
    parser = argparse.ArgumentParser(prog="python -m millrace.transport.agent.agent_process")
    parser.add_argument("--root", required=True, help="the workspace's folder on this host")
    parser.add_argument("--host", required=True, help="the address to listen on")
    parser.add_argument("--config", required=True, help="the limits, as JSON")
    given = parser.parse_args(arguments)
    config = Config(**json.loads(given.config))
    agent = Agent(
        folder=given.root,
        hosting=Hosting.one(given.root),
        host=given.host,
        port=0,
        config=config,
        lease_ms=config.agent_lease_ms,
        certificate=own_certificate(os.environ),
    )
    run(agent, stop_on_signals())
    leave()


def leave() -> None:
    """End the process even if a call to it hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
