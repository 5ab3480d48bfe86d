"""Messages of a slice for one queue, in order, with a limit on unanswered bytes. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from millrace.reads.queue.queue_messages import Flush, QueueRows


@dataclass(frozen=True, slots=True)
class SentSoFar:
    """What a slice has sent to one queue."""

    rows: int
    bytes: int
    unanswered_bytes: int
    """Of these bytes: those that the queue has not accepted yet."""
    is_blocked: bool
    """Whether more rows wait until it has."""


class Outbox:
    """Messages for a queue, and how many bytes of them it has not accepted yet."""

    def __init__(self, window_bytes_max: int) -> None:
        self._window = window_bytes_max
        self._waiting: deque[QueueRows | Flush] = deque()
        self._sent: deque[tuple[int, int]] = deque()  # number and bytes of what is unanswered
        self._unanswered = 0
        self._number = 0
        self._rows = self._bytes = 0

    @property
    def is_blocked(self) -> bool:
        """Whether a message waits until the queue accepts earlier ones."""
        return bool(self._waiting)

    def rows(self, batch: pa.RecordBatch) -> None:
        """Send rows after everything before."""
        self._number += 1
        self._waiting.append(QueueRows(self._number, batch))

    def flush(self, cycle: int) -> None:
        """Send a flush after everything before."""
        self._waiting.append(Flush(cycle))

    def ready(self) -> list[QueueRows | Flush]:
        """The messages that can be sent now. One message always fits into an empty window."""
        out: list[QueueRows | Flush] = []
        while self._waiting:
            message = self._waiting[0]
            if isinstance(message, QueueRows):
                size = message.batch.nbytes
                if self._unanswered and self._unanswered + size > self._window:
                    break
                self._unanswered += size
                self._rows += message.batch.num_rows
                self._bytes += size
                self._sent.append((message.number, size))
            out.append(self._waiting.popleft())
        return out

    def sent(self) -> SentSoFar:
        """What was sent so far."""
        return SentSoFar(self._rows, self._bytes, self._unanswered, self.is_blocked)

    def on_taken(self, number: int) -> None:
        """The queue has accepted this message and all before it."""
        while self._sent and self._sent[0][0] <= number:
            self._unanswered -= self._sent.popleft()[1]
