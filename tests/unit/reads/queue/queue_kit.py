"""Rows for a queue, and what a checkpoint makes of them, said plainly and row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible, Windows
from millrace.reads.model.tags import binding_of, tag_of
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.testing.fake_queue_disk import FakeQueueDisk

Pair = tuple[int, int]
Range = tuple[int, int, int, int, int]
"""Tag, producer, begin, end, highest clock."""

SYSTEM = [
    pa.field("_mr_tag", pa.int64(), nullable=False),
    pa.field("_mr_producer", pa.int64(), nullable=False),
    pa.field("_mr_clock", pa.uint64(), nullable=False),
    pa.field("_mr_offset", pa.int64(), nullable=False),
]
TEXT = pa.schema([*SYSTEM, pa.field("value", pa.string())])
WIDE = pa.schema([*SYSTEM, pa.field("value", pa.string()), pa.field("length", pa.int32())])


@dataclass(frozen=True, order=True)
class Row:
    tag: int
    offset: int
    producer: int
    clock: int

    @property
    def pair(self) -> Pair:
        return self.tag, self.producer

    @property
    def value(self) -> str:
        return f"{self.tag}:{self.offset}"


def batch_of(rows: Sequence[Row], schema: pa.Schema = TEXT, payload: str = "") -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "_mr_tag": [row.tag for row in rows],
        "_mr_producer": [row.producer for row in rows],
        "_mr_clock": [row.clock for row in rows],
        "_mr_offset": [row.offset for row in rows],
        "value": [row.value + payload for row in rows],
        "length": [len(row.value) for row in rows],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Back from Arrow, and each with the value it was sent with."""
    found = []
    for batch in batches:
        for each in batch.to_pylist():
            names = ("_mr_tag", "_mr_offset", "_mr_producer", "_mr_clock")
            row = Row(*(each[name] for name in names))
            assert each["value"].startswith(row.value), each
            assert "length" not in each or each["length"] == len(row.value), each
            found.append(row)
    return found


def stretch(tag: int, producer: int, clocks: Sequence[int], first_offset: int = 0) -> list[Row]:
    """Rows of one producer, one behind the other in their journal."""
    return [Row(tag, first_offset + n, producer, clock) for n, clock in enumerate(clocks)]


def limits(**changes: int) -> QueueLimits:
    """Those of the configuration, with some changed."""
    sizes = {
        field: getattr(QueueLimits.of(Config()), field)
        for field in QueueLimits.__dataclass_fields__
    }
    return QueueLimits(**(sizes | changes))


def fake_queue(
    streams: int = 1, *, disk: FakeQueueDisk | None = None, bindings: int = 3, **changes: int
) -> tuple[Queue, FakeQueueDisk]:
    disk = disk or FakeQueueDisk()
    queue = Queue(disk, limits(**changes), streams, [BindingOrder()] * bindings)
    return queue, disk


def window(*rows: tuple[int, int, int, int], gone: Sequence[Range] = ()) -> Visible:
    """Tag, producer, above and upto of each pair; and what was rolled back."""
    return Visible(Windows.of(sorted(rows)), rolled_back(gone))


def rolled_back(ranges: Sequence[Range] = ()) -> RolledBack:
    return RolledBack.of(sorted(ranges))


def shown(clocks: dict[Pair, int]) -> ShownClock:
    return ShownClock.of([(*pair, clock, -1, 1) for pair, clock in sorted(clocks.items())])


def everything(rows: Sequence[Row]) -> Visible:
    """A window that shows all of these rows."""
    return window(*((*pair, 0, 2**64 - 1) for pair in {row.pair for row in rows}))


def merged(rows: Sequence[Row], bindings: Sequence[BindingOrder]) -> list[Row]:
    """In the order of a merge by the first row that each tag has left."""
    left: dict[int, list[Row]] = {}
    for row in sorted(rows):
        left.setdefault(row.tag, []).append(row)
    out = []
    while left:
        tag = min(left, key=lambda each: _rank(left[each][0], bindings))
        out.append(left[tag].pop(0))
        if not left[tag]:
            del left[tag]
    return out


def _rank(row: Row, bindings: Sequence[BindingOrder]) -> tuple[int, int, int]:
    order = bindings[binding_of(row.tag)]
    return -order.priority, row.clock + order.delay, row.tag


def tags(binding: int, count: int) -> list[int]:
    return [tag_of(binding, journal) for journal in range(1, count + 1)]
