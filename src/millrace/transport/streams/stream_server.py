"""The rows of a streaming query, given out over Arrow Flight by the process that reads them.

Spark's tasks fetch here what a range of checkpoints shows to a member. Invariant: no call is looked
at before it has shown the workspace's token and the task; a range is always the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MemberLost, MillraceError, UserError
from millrace.storage.local import LocalStore
from millrace.transport.flight import wire
from millrace.transport.flight.connection_pool import Pool
from millrace.transport.flight.guarded_server import Admission, GuardedServer
from millrace.transport.flight.tls import Certificate
from millrace.transport.members.member_links import short
from millrace.transport.members.member_server import pieces

TASK_HEADER: Final = "x-millrace-stream"
FOLDER: Final = "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShare:
    """What one task of Spark reads: what checkpoints above `start` up to `end` show to a member."""

    member: int
    members: int
    start: int
    end: int


class RowSource(Protocol):
    """Where the rows come from."""

    schema: pa.Schema
    """Of every batch."""

    def rows(self, piece: StreamShare) -> Iterator[pa.RecordBatch]:
        """The rows of a piece; the same whenever it is asked for."""


class StreamServer(GuardedServer):
    """Gives out rows. It listens as soon as it is made."""

    def __init__(
        self,
        host: str,
        rows: RowSource,
        *,
        task: str,
        token: str,
        config: Config,
        certificate: Certificate | None = None,
    ) -> None:
        scheme = "grpc" if certificate is None else "grpc+tls"
        named = f"[{host}]" if ":" in host else host
        admission = Admission(token, {TASK_HEADER: task}, "not the token or not the task of this")
        try:
            super().__init__(
                f"{scheme}://{named}:0",
                admission,
                config=config,
                message_bytes_max=config.agent_request_bytes_max,
                certificate=certificate,
            )
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"the stream of task {task} cannot listen on {host}: {error}\n"
                "  to fix: give an address of the driver's host (MILLRACE_AGENT_HOST)"
            ) from error
        self.address = f"{scheme}://{named}:{self.port}"
        self._rows = rows
        self._config = config

    def do_get(self, _context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send the rows of a piece, in order, a bounded part at a time."""
        with _refusals():
            batches = self._rows.rows(_asked(ticket.ticket))
        return fl.GeneratorStream(self._rows.schema, self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _refusals():
            for batch in batches:
                yield from pieces(batch, self._config.reads_message_bytes_target)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAddress:
    """How a task reaches the stream: by a file in the workspace, else where it was when planned."""

    path: str
    """The workspace's folder."""
    task: str
    token: str
    planned: str
    """Where it answered when the batch was planned: for hosts that do not see the folder."""

    def find(self) -> str:
        """Where the stream answers now."""
        data = LocalStore(self.path).read(_file(self.task))
        try:
            return str(json.loads(data or b"")["address"])
        except (ValueError, KeyError, TypeError):
            return self.planned


def tell(store: LocalStore, task: str, address: str) -> None:
    """Say where the stream of a task answers, in place of whatever was said before."""
    store.make_folder(FOLDER)
    store.replace(_file(task), json.dumps({"address": address}).encode())


def fetch(
    where: StreamAddress, piece: StreamShare, roots: bytes | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, from wherever the stream answers."""
    address = where.find()
    pool = Pool(1, roots)
    options = fl.FlightCallOptions(headers=_headers(where.task, where.token))
    try:
        with _answers(where.task, address), pool.connection(address) as client:
            ticket = fl.Ticket(json.dumps(asdict(piece)).encode())
            for chunk in client.do_get(ticket, options):
                yield chunk.data
    finally:
        pool.close()


def _headers(task: str, token: str) -> list[tuple[bytes, bytes]]:
    return [
        (wire.TOKEN_HEADER.encode(), f"Bearer {token}".encode()),
        (TASK_HEADER.encode(), task.encode()),
    ]


def _file(task: str) -> str:
    return f"{FOLDER}/{task}.json"


def _asked(ticket: bytes) -> StreamShare:
    try:
        found = json.loads(ticket)
        names = ("member", "members", "start", "end")
        if all(type(found[name]) is int for name in names):
            return StreamShare(**{name: found[name] for name in names})
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(
        f"not a piece of a stream: {ticket[:80]!r}\n"
        "  to fix: use the same version of Millrace on both sides"
    )


@contextmanager
def _answers(task: str, address: str) -> Iterator[None]:
    """What goes wrong on the way, in our words."""
    try:
        yield
    except fl.FlightUnauthenticatedError as error:
        raise MemberLost(
            f"{address} refuses the token, or is not the stream of {task}\n"
            "  to fix: start the stream again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        sent = wire.decode_error(getattr(error, "extra_info", None))
        raise sent or MemberLost(
            f"the stream of task {task} at {address} does not answer: {short(error)}\n"
            "  to fix: start the query again; if tasks run on other hosts, set "
            "MILLRACE_AGENT_HOST on the driver to an address that they reach"
        ) from error


@contextmanager
def _refusals() -> Iterator[None]:
    """Send errors in a form that gives the caller the same kind of error."""
    try:
        yield
    except MillraceError as error:
        raise fl.FlightServerError("refused", extra_info=wire.encode_error(error)) from error
