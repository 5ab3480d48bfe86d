"""Single calls to agents: one question or one stream, tried once. For errors see `FlightCalls`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.ids import FolderId
from millrace.limits import MIB
from millrace.transport.agent import agent_messages
from millrace.transport.agent.agent_messages import AgentPong, Ticket
from millrace.transport.flight.byte_batches import byte_values
from millrace.transport.flight.flight_calls import FlightCalls

FETCH_BYTES_PER_S_MIN: Final = 1 * MIB
"""A fetch slower than this counts as stuck and is tried again."""


class AgentCalls:
    """Calls to agents with the token of a workspace."""

    def __init__(self, *, token: str, config: Config, roots: bytes | None = None) -> None:
        self.config = config
        self.flight = FlightCalls(token, connections_max=config.connections_max, roots=roots)
        self._call_ms = config.peer_ms(config.agent_call_ms_max)

    def ask(
        self,
        address: str,
        folder: FolderId,
        action: str,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> list[bytes]:
        """Ask a question about a folder and return all parts of the answer."""
        shown = {agent_messages.FOLDER_HEADER: folder}
        limit_ms = self._call_ms if timeout_ms is None else timeout_ms
        answer = self.flight.ask(address, action, body, timeout_ms=limit_ms, shown=shown)
        return [part.to_pybytes() for part in answer]

    def ping(self, address: str, folder: FolderId) -> AgentPong:
        """Ask which agent answers there, which renews its lease."""
        (answer,) = self.ask(address, folder, agent_messages.PING)
        return agent_messages.decode_pong(answer)

    def chunks(
        self, address: str, folder: FolderId, ticket: Ticket, *, bytes_left: int
    ) -> Generator[pa.Buffer]:
        """Stream what a ticket asks for. The deadline leaves time for that many bytes."""
        slowest_ms = bytes_left * 1000 // FETCH_BYTES_PER_S_MIN
        batches = self.flight.receive(
            address,
            agent_messages.encode_ticket(ticket),
            timeout_ms=self._call_ms + slowest_ms,
            shown={agent_messages.FOLDER_HEADER: folder},
        )
        with closing(batches):
            for batch in batches:
                yield from byte_values(batch)

    def close(self) -> None:
        """Close connections."""
        self.flight.close()
