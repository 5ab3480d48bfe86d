"""Single calls to an owner of journals over Arrow Flight, with token and deadline, tried once.

Invariant: an error that the owner sent is raised as the same kind of `MillraceError`; whatever else
goes wrong is a `OwnerCut`, which knows whether the call may have been carried out.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl
import xxhash

from millrace.config import Config
from millrace.errors import BrokerStopped, UserError
from millrace.journal.core.values import SegmentFile
from millrace.reads.live.follow_requests import AskAgain, FollowEnded, FollowRequest, Message
from millrace.transport.flight import wire
from millrace.transport.flight.connection_pool import Pool
from millrace.transport.flight.silent_streams import Silence
from millrace.transport.owner.broker_calls import CALLS, FILE, UPLOAD
from millrace.transport.owner.owner_endpoint import JournalAddress, Mark
from millrace.transport.owner.owner_server import CHUNKS, ENDING, PING, PROTOCOL, WORKSPACE_HEADER
from millrace.transport.owner.wire_shapes import ArrowParts, seal, unseal
from millrace.transport.streams.follow_messages import decode_message, encode_wanted

# What gRPC says when it could not even connect: nothing was sent then.
_NOT_CONNECTED: Final = "failed to connect"


class OwnerCut(Exception):
    """The owner did not answer, or stopped in the middle."""

    def __init__(self, reason: str, *, may_be_done: bool) -> None:
        super().__init__(reason)
        self.may_be_done = may_be_done


class OwnerRefused(Exception):
    """Whoever answers there does not serve this workspace for this token."""


class OwnerLink(Protocol):
    """A way to one owner."""

    epoch: int
    address: str

    def call(self, name: str, args: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401
        """Make a call and return its answer."""

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:
        """Hand a file of this process's over, to be adopted; return it as the owner has it."""

    def follow(self, wanted: FollowRequest) -> Generator[Message]:
        """What a follower is told, from its opening on."""

    def shared_folder(self) -> str | None:
        """The adoption folder, if files that are written here are there for the owner, too."""

    def is_stale(self) -> bool:
        """Whether this owner has ended, or another has begun; asked before each call."""

    def is_superseded(self) -> bool:
        """Whether another owner with a higher epoch is known."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPong:
    """Who answered."""

    workspace_id: str
    epoch: int
    instance: str


class OwnerConnections:
    """Connections to owners on behalf of whoever holds a token."""

    def __init__(self, where: JournalAddress, config: Config, roots: bytes | None = None) -> None:
        self.where = where
        self.config = config
        self.pool = Pool(config.connections_max, roots)
        self._headers = [(wire.TOKEN_HEADER.encode(), f"Bearer {where.token}".encode())]
        if where.workspace_id is not None:
            self._headers.append((WORKSPACE_HEADER.encode(), where.workspace_id.encode()))

    def ping(self, address: str, *, timeout_ms: int) -> OwnerPong:
        """Ask who answers there."""
        answer = self.ask(address, PING, b"", timeout_ms=timeout_ms).to_pybytes()
        try:
            found = json.loads(answer)
            if found["protocol"] != PROTOCOL:
                raise UserError(
                    f"the owner at {address} speaks protocol {found['protocol']}, this Millrace "
                    f"{PROTOCOL}\n  found: Millrace {found['version']}\n"
                    "  to fix: run the same version of Millrace everywhere"
                )
            return OwnerPong(
                workspace_id=str(found["workspace"]),
                epoch=int(found["epoch"]),
                instance=str(found["instance"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise OwnerCut(
                f"{address} answers in a way not understood", may_be_done=False
            ) from error

    def ask(self, address: str, action: str, body: bytes, *, timeout_ms: int) -> pa.Buffer:
        """Put one question and return the answer."""
        with self._connection(address) as client:
            (answer,) = client.do_action(fl.Action(action, body), self._options(timeout_ms))
            return answer.body

    def send(
        self, address: str, command: bytes, chunks: Iterator[pa.RecordBatch], *, timeout_ms: int
    ) -> pa.Buffer:
        """Send a stream and return the answer."""
        descriptor = fl.FlightDescriptor.for_command(command)
        with self._connection(address) as client:
            writer, answers = client.do_put(descriptor, CHUNKS, self._options(timeout_ms))
            with writer:
                for chunk in chunks:
                    writer.write_batch(chunk)
                writer.done_writing()
                answer = answers.read()
            if answer is None:
                raise OwnerCut("the stream ended early", may_be_done=True)
            return answer

    def receive(
        self, address: str, ticket: bytes, *, timeout_ms: int, silent_ms: int
    ) -> Generator[pa.RecordBatch]:
        """Ask for a stream, and end it when nobody wants more of it, or nothing comes any more."""
        with self._connection(address) as client:
            stream = client.do_get(fl.Ticket(ticket), self._options(timeout_ms))
            silence = Silence(stream.cancel, silent_ms)
            try:
                while (chunk := silence.next(stream)) is not None:
                    yield chunk.data
            finally:
                silence.close()
                stream.cancel()

    def close(self) -> None:
        """Close connections."""
        self.pool.close()

    def _options(self, timeout_ms: int) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(timeout=max(1, timeout_ms) / 1000, headers=self._headers)

    @contextmanager
    def _connection(self, address: str) -> Iterator[fl.FlightClient]:
        try:
            with self.pool.connection(address) as client:
                yield client
        except fl.FlightUnauthenticatedError as error:
            raise OwnerRefused(f"{address} does not serve this workspace for this token") from error
        except (pa.ArrowException, OSError) as error:
            self.pool.drop(address)
            text = str(error)
            unsent = isinstance(error, fl.FlightUnavailableError) and (
                _NOT_CONNECTED in text or ENDING in text
            )
            raise OwnerCut(_short(text), may_be_done=not unsent) from error


class FlightLink:
    """The way to an owner in another process, or in this one."""

    def __init__(self, flight: OwnerConnections, address: str, pong: OwnerPong, mark: Mark) -> None:
        """`mark` is that of the owner's file before it was read."""
        self.epoch = pong.epoch
        self.instance = pong.instance
        self._flight = flight
        self.address = address
        self._folder: tuple[str | None] | None = None
        self._mark = mark

    def call(self, name: str, args: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401
        """See `Link.call`."""
        call, parts = CALLS[name], ArrowParts()
        given = {key: shape.put(args[key], parts) for key, shape in call.takes.items()}
        body = seal(given, parts)
        most = self._flight.config.owner_request_bytes_max
        if len(body) > most:
            raise UserError(
                f"a call of {len(body)} bytes is too large\n"
                f"  limit: {most} (owner_request_bytes_max)\n"
                "  to fix: send it in pieces, or store files and adopt them"
            )
        slowest_ms = len(body) * 1000 // self._flight.config.fetch_bytes_per_s_min
        answer = self._flight.ask(self.address, name, body, timeout_ms=timeout_ms + slowest_ms)
        found, parts = _opened(answer)
        return call.answers.take(found, parts)

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:
        """See `Link.store`."""
        with pa.memory_map(path) as source:
            data = source.read_buffer()
            parts = ArrowParts()
            checksum = xxhash.xxh3_64_hexdigest(data)
            command = seal(UPLOAD.put((file, checksum), parts), parts)
            slowest_ms = data.size * 1000 // self._flight.config.fetch_bytes_per_s_min
            chunks = _chunks(data, self._flight.config.fetch_chunk_bytes)
            answer = self._flight.send(
                self.address, command, chunks, timeout_ms=timeout_ms + slowest_ms
            )
        found, parts = _opened(answer)
        stored: SegmentFile = FILE.take(found, parts)
        return stored

    def follow(self, wanted: FollowRequest) -> Generator[Message]:
        """See `Link.follow`."""
        config = self._flight.config
        # The owner gives a sign of life far more often; the other half is for finding the next one.
        silent_ms = max(2 * config.live_beat_ms, config.gone_ms_max // 2)
        timeout_ms = config.live_stream_ms_max + config.owner_call_ms_max
        received = self._flight.receive(
            self.address, encode_wanted(wanted), timeout_ms=timeout_ms, silent_ms=silent_ms
        )
        with contextlib.closing(received):
            for batch in received:
                message = decode_message(batch)
                yield message
                if isinstance(message, AskAgain | FollowEnded):
                    return
        raise OwnerCut("the stream ended early", may_be_done=False)

    def shared_folder(self) -> str | None:
        """See `Link.shared_folder`."""
        if self._folder is None:
            self._folder = (self._find_shared_folder(),)
        return self._folder[0]

    def is_stale(self) -> bool:
        """See `Link.is_stale`: whether the owner's file is no longer what it was."""
        return self._mark != self._flight.where.mark()

    def is_superseded(self) -> bool:
        """See `Link.is_superseded`."""
        said = self._flight.where.owner()
        return said is not None and said.epoch > self.epoch

    def close(self) -> None:
        """See `Link.close`."""
        self._flight.pool.drop(self.address)

    def _find_shared_folder(self) -> str | None:
        """Only a folder below the one in which this very owner left its file is surely the same."""
        said, path = self._flight.where.owner(), self._flight.where.path
        if said is None or path is None or said.instance != self.instance:
            return None
        timeout_ms = self._flight.config.peer_ms(self._flight.config.owner_call_ms_max)
        folder = str(self.call("adoption_folder", {}, timeout_ms=timeout_ms))
        below = os.path.realpath(folder).startswith(os.path.realpath(path) + os.sep)
        return folder if below and os.access(folder, os.W_OK | os.X_OK) else None


def _opened(answer: pa.Buffer) -> tuple[Any, ArrowParts]:
    """What was found; an error that was sent is raised."""
    document, parts = unseal(answer)
    if "error" in document:
        raise wire.decode_error(document["error"].encode()) or BrokerStopped(document["error"])
    return document["found"], parts


def _chunks(data: pa.Buffer, size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, data.size, size):
        piece = data.slice(at, min(size, data.size - at))
        offsets = pa.py_buffer(array("q", [0, piece.size]))
        column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, piece])
        yield pa.RecordBatch.from_arrays([column], schema=CHUNKS)


def _short(text: str) -> str:
    """What an error says, without Flight's account of its own insides."""
    return text.split(". Detail:", 1)[0].split(" gRPC client debug", 1)[0][:300]
