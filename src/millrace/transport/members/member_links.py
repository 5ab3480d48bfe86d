"""One end of a stream between a session and a slice, or a slice and a queue.

A sender never waits: a thread of the link's own writes, in order. What is unsent is bounded
by the senders: a slice has a window for each queue (`reads_window_bytes_max`), a queue answers
what it was sent, and reports follow flushes that were answered. When there is nothing to send a
beat goes out, so that silence means that the way is cut.

Invariant: a link is lost once, with the first reason; messages after that are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.errors import MemberLost, MillraceError
from millrace.transport.flight.byte_batches import byte_batch
from millrace.transport.flight.flight_calls import CallCut, CallRefused, call_error
from millrace.transport.members.member_messages import (
    MemberBeat,
    StreamMessages,
    decode,
    encode,
    unwrapped,
)
from millrace.wakeup import WakeUp, WorkerThread, is_current, still_running

READS_BEAT_MS: Final = 1_000
"""How often a member that has nothing to send sends a beat."""

LOOKS_PER_LIMIT: Final = 8
"""How often silence is looked for, within the time that it is allowed to last."""

_LAST_WORDS_S: Final = 1.0
"""How long a stream that cannot be written to is listened to, for why."""


class FlightWriter(Protocol):
    """Flight's half to write to."""

    def write_metadata(self, buffer: pa.Buffer) -> None:
        """Send an envelope alone."""

    def write_with_metadata(self, batch: pa.RecordBatch, buffer: pa.Buffer) -> None:
        """Send an envelope with rows."""


class MemberLink:
    """One end of an open stream. `lost` gets the reason if it breaks, unless it was closed here."""

    def __init__(
        self,
        *,
        peer: str,
        writer: FlightWriter,
        says: StreamMessages,
        hears: StreamMessages,
        config: Config,
        lost: Callable[[BaseException], None],
        begin: Callable[[], None] = lambda: None,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin` is done before anything is written, `cancel` when the stream is to end."""
        self.peer = peer
        """The other end, in words."""
        self._writer = writer
        self._says = says
        self._hears = hears
        self._bytes_max = config.reads_envelope_bytes_max
        self._beat_s = READS_BEAT_MS / 1000
        self._silent_s = config.reads_silent_ms_max / 1000
        self._lost = lost
        self._begin = begin
        self._cancel = cancel
        self._changed = threading.Condition()
        self._unsent: deque[object] = deque()
        self._is_over = False
        self._heard_at: float | None = time.monotonic()
        """None while something that was heard is being dealt with."""
        self._thread = WorkerThread(self._run, f"reads-to-{peer}")
        self._thread.start()

    def send(self, message: object) -> None:
        """Send after everything before; never waits."""
        with self._changed:
            self._unsent.append(message)
            self._changed.notify()

    @property
    def unsent(self) -> int:
        """How many messages wait to be written."""
        return len(self._unsent)

    def hear(self, reader: Any, handle: Callable[[Any], None]) -> None:  # noqa: ANN401 - Flight's
        """Deal with what comes until the stream ends, in the calling thread."""
        try:
            self._hear(reader, handle)
        except BaseException as error:  # noqa: BLE001 - the session is told, and ends
            self.lose(error)
        else:
            self.lose(MemberLost(f"{self.peer} ended the stream\n  to fix: open the session again"))

    def check_silence(self, now_s: float) -> None:
        """Lose the link if nothing came for too long."""
        heard = self._heard_at
        if heard is not None and now_s - heard > self._silent_s:
            self.lose(
                MemberLost(
                    f"nothing was heard of {self.peer} for {round(self._silent_s * 1000)} ms\n"
                    "  limit: reads_silent_ms_max\n"
                    "  to fix: see that its host runs and can be reached"
                )
            )

    def lose(self, error: BaseException) -> None:
        """Give the link up."""
        if self._end():
            self._lost(_understood(error, self.peer))

    def close(self, wait_ms: int = 0) -> None:
        """End the stream. What is unsent is given so long to go out; `lost` is not called."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or self._is_over, wait_ms / 1000)
        self._end()

    def join(self) -> None:
        """Wait until nothing is written any more; after the stream has ended.

        There is no limit, as Flight frees the stream when its call returns, and a write after
        that would crash the process. A write ends when the stream is cancelled or its
        connection breaks; the closing of a server waits for that within a limit.
        """
        if not is_current(self._thread):
            self._thread.ended.wait()

    def _end(self) -> bool:
        with self._changed:
            was_over, self._is_over = self._is_over, True
            self._unsent.clear()
            self._changed.notify_all()
        if not was_over:
            self._cancel()
        return not was_over

    def _hear(self, reader: Any, handle: Callable[[Any], None]) -> None:  # noqa: ANN401 - Flight's
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            self._heard_at = None
            try:
                if chunk.app_metadata is not None or chunk.data is not None:
                    body = unwrapped(chunk.data)
                    message = decode(self._hears, chunk.app_metadata, body, self._bytes_max)
                    if not isinstance(message, MemberBeat):
                        handle(message)
            finally:
                self._heard_at = time.monotonic()

    def _run(self) -> None:
        try:
            self._begin()
            while True:
                with self._changed:
                    if not self._unsent and not self._is_over:
                        self._changed.wait(self._beat_s)
                    if self._is_over:
                        return
                    message = self._unsent[0] if self._unsent else None
                self._write(MemberBeat() if message is None else message)
                if message is not None:
                    with self._changed:
                        if self._unsent:
                            self._unsent.popleft()
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the session is told, and ends
            # The other end may have said why it ended the stream, and that is still to be heard.
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, _LAST_WORDS_S)
            self.lose(error)

    def _write(self, message: object) -> None:
        sealed = encode(self._says, message, self._bytes_max)
        envelope = pa.py_buffer(sealed.envelope)
        if sealed.body is None:
            self._writer.write_metadata(envelope)
        else:
            self._writer.write_with_metadata(byte_batch(sealed.body), envelope)


class SilenceWatch:
    """Looks for links that have gone silent, in a thread of its own."""

    def __init__(self, links: Callable[[], Iterable[MemberLink]], config: Config) -> None:
        self._links = links
        self._every_s = config.reads_silent_ms_max / 1000 / LOOKS_PER_LIMIT
        self._stop_ms_max = config.reads_stop_ms_max
        self._ending = WakeUp()
        self._thread = WorkerThread(self._run, "reads-silence")
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ending.stop()
        still_running([self._thread], self._stop_ms_max)

    def _run(self) -> None:
        while self._ending.sleep(self._every_s):
            for link in list(self._links()):
                link.check_silence(time.monotonic())


def _understood(error: BaseException, peer: str) -> BaseException:
    """Flight's error for a broken stream, in our words; any other error as it is."""
    if isinstance(error, MillraceError) or not isinstance(error, pa.ArrowException | OSError):
        return error
    understood = call_error(error, peer)
    match understood:
        case CallRefused():
            return MemberLost(
                f"{peer} refuses this session's token or epoch\n  to fix: open the session again"
            )
        case CallCut():
            return MemberLost(
                f"the stream to {peer} broke: {understood}\n  to fix: open the session again"
            )
        case _:
            return understood
