"""Writes all rows of a result to a topic in one transaction, under a name: once for each name.

The name is a record of the topic of places, in the transaction that has the rows. Invariant: a
topic has all rows of a write or none of them, and those of a name at most once, for readers of
committed messages.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import Conflict, LeaseLost, MillraceError, Retriable, UserError
from millrace.journal.kafka.kafka_client import call_ms
from millrace.journal.kafka.sink.kafka_target import KafkaTarget
from millrace.journal.kafka.sink.place_topic import check_topics
from millrace.journal.kafka.sink.placed_messages import PlacedMessages

_PREFIX: Final = "write_kafka"
_UNIT: Final = 0
Rows = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeMessages:
    """A write of a result."""

    target: KafkaTarget
    once: str | None
    """The user's name of it; None: every write is another one."""
    limit_ms: int
    """How long its transaction may take."""
    config: Config
    who: str

    def prepare(self) -> int | None:
        """Refuse a topic that cannot have the rows; the rows of an earlier write of this name."""
        check_topics(self.target, self.config, who=self.who)
        if self.once is None:
            return None
        messages = self._messages(self.once)
        with contextlib.closing(messages):
            return messages.take(_UNIT)

    def write(self, rows: Rows) -> int:
        """Write all rows, which are asked for twice; how many the topic got under this name."""
        messages = self._messages(secrets.token_hex(16) if self.once is None else self.once)
        with contextlib.closing(messages):
            written = messages.take(_UNIT)
            if written is not None:
                return written
            count = 0
            for batch in rows():  # All of them, before one is sent.
                messages.check(batch)
                count += batch.num_rows
            began = time.monotonic()
            try:
                messages.commit_checked(rows, count, count)
            except (LeaseLost, Retriable) as error:
                took_s = time.monotonic() - began
                is_late = took_s * 1000 >= max(self.limit_ms, call_ms(self.config))
                if isinstance(error, Retriable) and not is_late:
                    raise
                if messages.take(_UNIT) != count:
                    raise self._not_committed(error, took_s, is_late=is_late) from error
            if self.once is None:
                with contextlib.suppress(MillraceError):  # Then a record of some bytes stays.
                    messages.forget()
        return count

    def _messages(self, once: str) -> PlacedMessages:
        name = f"{_PREFIX}/{self.target.topic}/{once}"
        return PlacedMessages(
            self.target, name, self.config, who=self.who, transaction_ms_max=self.limit_ms
        )

    def _not_committed(
        self, error: MillraceError, took_s: float, *, is_late: bool
    ) -> MillraceError:
        """Kafka ended the transaction; nothing of it is there."""
        if self.once is not None and not is_late:
            return Conflict(
                f"{self.who}: another process writes under the name {self.once!r}\n"
                f"  found: {error}\n  to fix: let one process write it"
            )
        return UserError(
            f"{self.who}: the transaction took too long, and nothing of it is in the topic\n"
            f"  found: {took_s:.0f} s, limit: {self.limit_ms / 1000:g} s (timeout)\n"
            "  to fix: give a longer timeout= (Kafka allows transaction.max.timeout.ms, 15 minutes "
            "by default), or write the rows in parts, each with a name (once=)"
        )
