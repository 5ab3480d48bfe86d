"""The messages between slices and a queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one binding; with `_mr_tag`, `_mr_producer`, `_mr_clock` and `_mr_offset`."""

    number: int
    """Counts the messages with rows of this stream, from 1."""
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Flush:
    """Answer when everything before this on the stream is in the file."""

    cycle: int


@dataclass(frozen=True, slots=True)
class RowsAccepted:
    """The queue has this message with rows and all before it on the stream."""

    number: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything before that flush on the stream is in the file."""

    cycle: int


Message = QueueRows | Flush
Reply = RowsAccepted | Flushed
Replies = list[tuple[int, Reply]]
"""Each with the stream that it is for."""
