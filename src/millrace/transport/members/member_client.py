"""The client of a member: it opens streams, asks questions and reads visible rows.

Invariant: an error that the member sent is raised as the same kind. Any other trouble is a
`MemberLost` that names the member.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import Config
from millrace.errors import MemberLost
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.transport.flight.byte_batches import BYTES
from millrace.transport.flight.flight_calls import CallCut, CallRefused, FlightCalls
from millrace.transport.flight.wire import from_json
from millrace.transport.members import member_server
from millrace.transport.members.member_links import MemberLink
from millrace.transport.members.member_messages import (
    StreamMessages,
    decode_rows,
    encode_release,
    encode_visible,
)
from millrace.transport.members.member_server import MemberStats, SessionId, StreamCommand
from millrace.wakeup import WorkerThread, still_running

READS_CALL_MS_MAX: Final = 30_000
"""How long a question to a member may take before it counts as lost."""


class MemberClient:
    """Calls one member; many threads may use it."""

    def __init__(
        self,
        number: int,
        address: str,
        *,
        session: SessionId,
        config: Config,
        roots: bytes | None = None,
    ) -> None:
        self.number = number
        self.address = address
        self._config = config
        self._flight = FlightCalls(session.token, session.shown(), connections_max=1, roots=roots)
        self._lock = threading.Lock()
        self._reading: weakref.WeakSet[VisibleRows] = weakref.WeakSet()
        self._hearing: list[WorkerThread] = []
        self._is_closed = False

    def __str__(self) -> str:
        return f"member {self.number} at {self.address}"

    def open(
        self,
        slice_: int | None,
        *,
        says: StreamMessages,
        hears: StreamMessages,
        lost: Callable[[BaseException], None],
        handle: Callable[[Any], None],
    ) -> MemberLink:
        """Open a stream, of the session (None) or of a slice; `handle` gets its messages.

        Whether the member takes it is the first thing that comes.
        """
        holding = ExitStack()
        try:
            with self.errors():
                client = holding.enter_context(self.connection())
                command = StreamCommand(slice_).to_json()
                descriptor = fl.FlightDescriptor.for_command(command)
                writer, reader = client.do_exchange(descriptor, self.options())
        except BaseException:
            holding.close()
            raise
        link = MemberLink(
            peer=str(self),
            writer=writer,
            says=says,
            hears=hears,
            config=self._config,
            lost=lost,
            begin=lambda: writer.begin(BYTES),
            cancel=reader.cancel,
        )

        def hear() -> None:
            with holding:
                link.hear(reader, handle)
                link.join()
                with contextlib.suppress(pa.ArrowException, OSError):
                    writer.close()  # Else Flight complains of a stream that was left open.

        thread = WorkerThread(hear, f"reads-from-{self.number}")
        thread.start()
        with self._lock:
            self._hearing.append(thread)
        return link

    def read(self, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The rows that become visible as of now, in order; given up when this is closed."""
        rows = VisibleRows(self, visible)
        with self._lock:
            self._reading.add(rows)
            is_closed = self._is_closed
        if is_closed:
            rows.cancel()
        return rows

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        """Its queue may free what is shown."""
        self._ask(member_server.RELEASE, encode_release(shown, rolled_back))

    def set_disk_limit(self, *, is_on: bool) -> None:
        """Have its queue keep to its disk limit, or accept rows beyond it."""
        self._ask(member_server.LIMIT_ON if is_on else member_server.LIMIT_OFF)

    def stats(self) -> MemberStats:
        """The state of the member."""
        return from_json(self._ask(member_server.STATS), MemberStats, "the state of a member")

    def stop(self) -> None:
        """Have it end."""
        self._ask(member_server.STOP, timeout_ms=self._config.reads_stop_ms_max)

    def cancel(self) -> None:
        """End what is being read."""
        with self._lock:
            self._is_closed = True
            reading = list(self._reading)
        for rows in reading:
            rows.cancel()

    def close(self) -> None:
        """Close it, once its streams are ended: waits for their threads to notice."""
        self.cancel()
        with self._lock:
            hearing = list(self._hearing)
        # A member that stands still would not let go: then its stream ends with its connection.
        still_running(hearing, self._config.reads_stop_ms_max)
        self._flight.close()

    def _ask(self, action: str, body: bytes = b"", *, timeout_ms: int | None = None) -> bytes:
        limit_ms = timeout_ms or READS_CALL_MS_MAX
        with self.errors():
            (answer,) = self._flight.ask(self.address, action, body, timeout_ms=limit_ms)
        return bytes(answer)

    def connection(self) -> AbstractContextManager[fl.FlightClient]:
        """A connection to use within a block."""
        return self._flight.pool.connection(self.address)

    def options(self) -> fl.FlightCallOptions:
        """The options of every stream."""
        return self._flight.options()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors within the block become Millrace's."""
        try:
            with self._flight.errors(self.address):
                yield
        except CallRefused as error:
            raise MemberLost(
                f"{self} refuses this session's token or epoch\n  to fix: open the session again"
            ) from error
        except CallCut as error:
            raise MemberLost(
                f"{self} does not answer: {error}\n"
                "  to fix: open the session again; see that the host can be reached"
            ) from error


class VisibleRows:
    """Rows on their way from a member, requested when this is made."""

    def __init__(self, member: MemberClient, visible: Visible) -> None:
        self._member = member
        self._holding = ExitStack()
        with member.errors():
            client = self._holding.enter_context(member.connection())
            self._stream = client.do_get(fl.Ticket(encode_visible(visible)), member.options())
        self._is_over = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._is_over:
            raise StopIteration
        try:
            with self._member.errors():
                chunk = self._stream.read_chunk()
                return decode_rows(chunk.data, chunk.app_metadata)
        except BaseException:
            self._is_over = True
            self._holding.close()
            raise

    def __del__(self) -> None:
        """End a call whose answer is not needed any more."""
        with contextlib.suppress(Exception):
            self.cancel()
            self._holding.close()

    def cancel(self) -> None:
        """End it; a reader that reads on gets an error."""
        self._stream.cancel()
