"""What a stage's manifest records of how it came about: who ran its tasks, when, and why.

It is for people. Nothing that a reader of rows does depends on it, so that a manifest without it,
of an earlier version, is as good.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.shuffle.fetch_counts import FetchCounts
from millrace.storage.documents import Document

TASK_TIMES: Final = pa.schema(
    [
        ("map_task", pa.int64()),
        ("began_ms", pa.int64()),
        ("ended_ms", pa.int64()),
        ("host", pa.string()),
        ("worker", pa.int64()),
        ("failed_before", pa.int64()),
    ]
)
_REASONS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTime:
    """When and where a map task ran: `worker` is the process, which does one task at a time."""

    began_ms: int
    ended_ms: int
    host: str
    worker: int
    failed_before: int
    """How often the Spark task that ran it had failed before."""
    spilled_bytes: int
    """That it wrote to disk as they did not fit its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """How a stage came about."""

    began_ms: int
    seconds: float
    reads: tuple[tuple[int, int], ...] = ()
    """The stages that it read, as (run, stage)."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why tasks ran instead of being reused, and how many for each reason."""
    notes: tuple[str, ...] = ()
    times: pa.Table = field(default_factory=TASK_TIMES.empty_table)
    """Of the tasks that ran in this run."""
    spilled: Mapping[int, int] | None = None
    """Bytes that tasks spilled, by map task, of those that did; unknown of earlier versions."""
    fetched: FetchCounts | None = None
    """What its tasks fetched from other hosts; unknown of earlier versions."""

    def document(self) -> dict[str, Any]:
        """As the manifest has it."""
        document = {
            "began_ms": self.began_ms,
            "seconds": round(self.seconds, 3),
            "reads": [list(read) for read in self.reads],
            "reasons": dict(self.reasons),
            "notes": list(self.notes),
            "times": _packed(self.times),
        }
        if self.spilled is not None:
            document["spilled"] = [list(pair) for pair in self.spilled.items()]
        if self.fetched is not None:
            document["fetched"] = self.fetched.encode()
        return document

    @classmethod
    def of_document(cls, fields: Mapping[str, Any]) -> StageRecord | None:
        """From a manifest; None if it has none. Raises `ValueError` for one that cannot be."""
        if not fields:
            return None
        document = Document(fields)
        reads = [tuple(map(int, read)) for read in document.items("reads")]
        spilled, fetched = fields.get("spilled"), fields.get("fetched")
        return cls(
            began_ms=document.whole("began_ms"),
            seconds=float(document.fields["seconds"]),
            reads=tuple((run, stage) for run, stage in reads),
            reasons={str(text): int(n) for text, n in document.table("reasons").items()},
            notes=tuple(map(str, document.items("notes"))),
            times=_unpacked(document.text("times")),
            spilled=None if spilled is None else {int(task): int(n) for task, n in spilled},
            fetched=None if fetched is None else FetchCounts.decode(fetched),
        )


def time_here(began_ms: int, ended_ms: int, failed_before: int, *, spilled_bytes: int) -> TaskTime:
    """The time of a task that ran in this process."""
    return TaskTime(
        began_ms=began_ms,
        ended_ms=ended_ms,
        host=socket.gethostname(),
        worker=os.getpid(),
        failed_before=failed_before,
        spilled_bytes=spilled_bytes,
    )


def encode_time(time: TaskTime | None) -> str | None:
    """As a task sends it to the driver."""
    return None if time is None else json.dumps(asdict(time))


def decode_time(text: str | None) -> TaskTime | None:
    """As the driver reads it."""
    return None if text is None else TaskTime(**json.loads(text))


def times_of(tasks: Iterable[tuple[int, TaskTime | None]]) -> pa.Table:
    """The times of tasks, by number; those that did not run are left out."""
    ran = [(number, time) for number, time in tasks if time is not None]
    columns = [
        [number for number, _ in ran],
        *([getattr(time, name) for _, time in ran] for name in TASK_TIMES.names[1:]),
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, TASK_TIMES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TASK_TIMES)


def counted_reasons(reasons: Sequence[str]) -> dict[str, int]:
    """How often there is each reason; the rarest of very many are joined."""
    counts = Counter(reasons).most_common()
    kept = dict(counts[:_REASONS_MAX])
    rest = sum(count for _, count in counts[_REASONS_MAX:])
    return kept | ({"other reasons": rest} if rest else {})


def _packed(times: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, times.schema, options=options) as writer:
        writer.write_table(times)
    return base64.b64encode(sink.getvalue()).decode()


def _unpacked(text: str) -> pa.Table:
    times = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
    if times.schema != TASK_TIMES:
        raise ValueError(f"times of tasks with the columns {times.schema.names}")
    times.validate(full=True)
    return times
