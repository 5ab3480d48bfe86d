"""Single calls to agents: one question or one stream, with token and deadline, tried once.

Invariant: an error that the agent sent is raised as the same kind of `MillraceError`; whatever else
goes wrong is a `AgentCut`. Whether to try again is for the caller to decide.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import Retriable
from millrace.ids import FolderId
from millrace.transport.flight import wire
from millrace.transport.flight.connection_pool import Pool
from millrace.transport.flight.wire import AgentPong, Ticket


class AgentCut(Exception):
    """The agent did not answer, or stopped in the middle."""


class AgentRefused(Exception):
    """Whoever answers there does not serve this folder for this token."""


class AgentCalls:
    """Calls on behalf of whoever holds the token."""

    def __init__(self, *, token: str, config: Config, roots: bytes | None = None) -> None:
        self.config = config
        self.pool = Pool(config.connections_max, roots)
        self._call_ms = config.peer_ms(config.agent_call_ms_max)
        self._token = token

    def ask(self, address: str, folder: FolderId, action: str, body: bytes = b"") -> list[bytes]:
        """Put a question and return all parts of the answer."""
        with self._connection(address) as client:
            options = self._options(folder, self._call_ms)
            answer = client.do_action(fl.Action(action, body), options)
            return [result.body.to_pybytes() for result in answer]

    def ping(self, address: str, folder: FolderId) -> AgentPong:
        """Ask who answers there, which renews its lease."""
        (answer,) = self.ask(address, folder, wire.PING)
        return wire.decode_pong(answer)

    def chunks(
        self, address: str, folder: FolderId, ticket: Ticket, *, bytes_left: int
    ) -> Generator[pa.Buffer]:
        """Stream what a ticket asks for. The deadline leaves time for that many bytes."""
        slowest_ms = bytes_left * 1000 // self.config.fetch_bytes_per_s_min
        options = self._options(folder, self._call_ms + slowest_ms)
        with self._connection(address) as client:
            stream = client.do_get(fl.Ticket(wire.encode_ticket(ticket)), options)
            try:
                for message in stream:
                    yield from _values(message.data)
            finally:
                stream.cancel()

    def close(self) -> None:
        """Close connections."""
        self.pool.close()

    @contextmanager
    def _connection(self, address: str) -> Iterator[fl.FlightClient]:
        try:
            with self.pool.connection(address) as client:
                yield client
        except fl.FlightUnauthenticatedError as error:
            raise AgentRefused(f"{address} does not serve this folder for this token") from error
        except (pa.ArrowException, OSError) as error:
            sent = wire.decode_error(getattr(error, "extra_info", None))
            if sent is None or isinstance(sent, Retriable):
                self.pool.drop(address)
                raise AgentCut(_short(sent or error)) from error
            raise sent from error

    def _options(self, folder: FolderId, timeout_ms: int) -> fl.FlightCallOptions:
        headers = [
            (wire.TOKEN_HEADER.encode(), f"Bearer {self._token}".encode()),
            (wire.FOLDER_HEADER.encode(), folder.encode()),
        ]
        return fl.FlightCallOptions(timeout=timeout_ms / 1000, headers=headers)


def _values(batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
    """The bytes in a message, as views of it."""
    for value in batch.column(0):
        yield value.as_buffer()


def _short(error: Exception) -> str:
    """What an error says, without Flight's account of its own insides."""
    return str(error).split(". Detail:", 1)[0].split(" gRPC client debug", 1)[0][:300]
