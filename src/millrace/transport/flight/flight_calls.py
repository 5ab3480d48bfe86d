"""The client side of every Flight service: connections, token, deadlines and errors.

A call is tried once; whether to try again is for the caller to decide.

Invariant: an error that the server sent is raised as the same kind of `MillraceError`. Any other
trouble is a `CallCut`, or a `CallRefused` if the server did not accept the token.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.errors import MillraceError
from millrace.metrics.process_metrics import FETCHED_BYTES
from millrace.metrics.traces import trace_header
from millrace.transport.flight import wire
from millrace.transport.flight.byte_batches import BYTES
from millrace.transport.flight.connection_pool import Pool
from millrace.transport.flight.silent_streams import watched

# What gRPC says when it could not even connect: nothing was sent then.
_NOT_CONNECTED: Final = "failed to connect"
_REASON_CHARS_MAX: Final = 300


class CallCut(Exception):
    """The server did not answer, or stopped in the middle."""

    def __init__(self, reason: str, *, may_be_done: bool = True) -> None:
        super().__init__(reason)
        self.may_be_done = may_be_done
        """Whether the server may have carried out the call."""


class CallRefused(Exception):
    """The server did not accept the token, or is another server than expected."""


class FlightCalls:
    """Calls to Flight servers that accept one token. Many threads may use it."""

    def __init__(
        self,
        token: str,
        shown: Mapping[str, str] | None = None,
        *,
        connections_max: int,
        roots: bytes | None = None,
    ) -> None:
        """`shown` are headers of every call, besides the token."""
        self.pool = Pool(connections_max, roots)
        self._headers = _headers({wire.TOKEN_HEADER: f"Bearer {token}", **(shown or {})})

    def ask(
        self,
        address: str,
        action: str,
        body: bytes = b"",
        *,
        timeout_ms: int,
        shown: Mapping[str, str] | None = None,
    ) -> list[pa.Buffer]:
        """Ask a question and return all parts of the answer."""
        with self.connection(address) as client:
            answers = client.do_action(fl.Action(action, body), self.options(timeout_ms, shown))
            return [answer.body for answer in answers]

    def receive(
        self,
        address: str,
        ticket: bytes,
        *,
        timeout_ms: int | None = None,
        silent_ms: int | None = None,
        shown: Mapping[str, str] | None = None,
    ) -> Generator[pa.RecordBatch]:
        """Ask for a stream. It ends when it is closed, or nothing came for `silent_ms`."""
        with self.connection(address) as client:
            stream = client.do_get(fl.Ticket(ticket), self.options(timeout_ms, shown))
            try:
                for chunk in stream if silent_ms is None else watched(stream, silent_ms):
                    FETCHED_BYTES.add(chunk.data.nbytes)
                    yield chunk.data
            finally:
                stream.cancel()

    def send(
        self, address: str, command: bytes, chunks: Iterable[pa.RecordBatch], *, timeout_ms: int
    ) -> pa.Buffer:
        """Send a stream of bytes and return the answer."""
        descriptor = fl.FlightDescriptor.for_command(command)
        with self.connection(address) as client:
            writer, answers = client.do_put(descriptor, BYTES, self.options(timeout_ms))
            with writer:
                for chunk in chunks:
                    writer.write_batch(chunk)
                writer.done_writing()
                answer = answers.read()
            if answer is None:
                raise CallCut("the stream ended early")
            return answer

    def options(
        self, timeout_ms: int | None = None, shown: Mapping[str, str] | None = None
    ) -> fl.FlightCallOptions:
        """The options of every call."""
        timeout = {} if timeout_ms is None else {"timeout": max(1, timeout_ms) / 1000}
        headers = [*self._headers, *_headers({**trace_header(), **(shown or {})})]
        return fl.FlightCallOptions(headers=headers, **timeout)

    @contextmanager
    def connection(self, address: str) -> Iterator[fl.FlightClient]:
        """A connection to use within the block, which raises errors as described above."""
        with self.errors(address), self.pool.connection(address) as client:
            yield client

    @contextmanager
    def errors(self, address: str) -> Iterator[None]:
        """Raise what goes wrong within the block as described above."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            understood = call_error(error, address)
            if isinstance(understood, CallCut):
                self.pool.drop(address)
            raise understood from error

    def close(self) -> None:
        """Close connections."""
        self.pool.close()


def call_error(error: Exception, address: str) -> MillraceError | CallCut | CallRefused:
    """Millrace's error for an error of Flight."""
    if isinstance(error, fl.FlightUnauthenticatedError):
        return CallRefused(f"{address} does not accept this token, or is another server")
    sent = wire.decode_error(getattr(error, "extra_info", None))
    if sent is not None:
        return sent
    text = str(error)
    was_sent = _NOT_CONNECTED not in text and wire.ENDING not in text
    is_unavailable = isinstance(error, fl.FlightUnavailableError)
    return CallCut(short(text), may_be_done=was_sent or not is_unavailable)


def short(text: str) -> str:
    """The message of an error, without Flight's internal details."""
    text = text.split(". Detail:", 1)[0].split(" gRPC client debug", 1)[0]
    return text[:_REASON_CHARS_MAX]


def _headers(shown: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in shown.items()]
