"""What map tasks report to the driver, one row each.

Invariant: a result names exactly one finished attempt, with its whole index. What a task could not
do is a result too, and not an error of Spark's: the other tasks of its stage go on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.engine.operator_profile import OperatorMeasure, decode_measures, encode_measures
from millrace.execute.lost_outputs import Lost, decode_lost, encode_lost
from millrace.ids import FolderId, MapTask
from millrace.shuffle.fetch_counts import FetchCounts
from millrace.shuffle.index import MapTaskIndex, decode_bin, encode_bin
from millrace.shuffle.stage_record import TaskTime, decode_time, encode_time

_ROWS_AT_ONCE: Final = 1000
RESULT_SCHEMA: Final = pa.schema(
    [
        ("map_task", pa.int64()),
        ("folder", pa.string()),
        ("agent", pa.string()),
        ("ran", pa.bool_()),
        ("index_bytes", pa.int64()),
        ("index", pa.binary()),
        ("lost", pa.string()),
        ("operators", pa.string()),
        ("fetched", pa.string()),
        ("no_memory", pa.string()),
        ("time", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A map task that is finished: the folder of its output, and what was measured."""

    map_task: MapTask
    folder: FolderId | None
    agent: str | None
    ran: bool
    index: MapTaskIndex
    operators: tuple[OperatorMeasure, ...] = ()
    fetched: FetchCounts = field(default_factory=FetchCounts)
    """What was fetched from other hosts for it."""
    time: TaskTime | None = None
    """When and where it ran; None if it did not."""


@dataclass(frozen=True, slots=True)
class MapTaskFailed:
    """A map task that could not read what earlier stages wrote."""

    map_task: MapTask
    lost: tuple[Lost, ...]


@dataclass(frozen=True, slots=True)
class MapTaskTooLarge:
    """A map task whose query needed more memory than it may have, and the error's text."""

    map_task: MapTask
    text: str


Outcome = Result | MapTaskFailed | MapTaskTooLarge


def encode_result(result: Outcome) -> pa.RecordBatch:
    """Encode a result as one row for the driver."""
    row: list[Any]
    match result:
        case Result():
            index = encode_bin(result.index)
            packed = pa.Codec("zstd").compress(index).to_pybytes()
            row = [result.map_task, result.folder, result.agent, result.ran, len(index), packed]
            fetched = json.dumps(result.fetched.encode()) if result.fetched else None
            time = encode_time(result.time)
            row += [None, encode_measures(result.operators), fetched, None, time]
        case MapTaskFailed(map_task, lost):
            row = [map_task, None, None, True, None, None, encode_lost(lost), *[None] * 4]
        case MapTaskTooLarge(map_task, text):
            row = [map_task, None, None, True, *[None] * 5, text, None]
    columns = [pa.array([value], f.type) for value, f in zip(row, RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT_SCHEMA)


def decode_results(table: pa.Table) -> list[Outcome]:
    """Decode the results of all tasks, in the driver."""
    results: list[Outcome] = []
    # Not all at once: the indexes of very many map tasks take much memory.
    for row in (row for batch in table.to_batches(_ROWS_AT_ONCE) for row in batch.to_pylist()):
        map_task = MapTask(row["map_task"])
        if row["no_memory"] is not None:
            results.append(MapTaskTooLarge(map_task, row["no_memory"]))
            continue
        if row["lost"] is not None:
            results.append(MapTaskFailed(map_task, tuple(decode_lost(row["lost"]))))
            continue
        packed, size = row["index"], row["index_bytes"]
        payload = pa.Codec("zstd").decompress(packed, decompressed_size=size).to_pybytes()
        folder = row["folder"]
        results.append(
            Result(
                map_task=map_task,
                folder=None if folder is None else FolderId(folder),
                agent=row["agent"],
                ran=row["ran"],
                index=decode_bin(payload, where=f"the result of map task {map_task}"),
                operators=decode_measures(row["operators"]),
                fetched=FetchCounts.decode(json.loads(row["fetched"] or "{}")),
                time=decode_time(row["time"]),
            )
        )
    return results


def finished_results(table: pa.Table) -> list[Result]:
    """The results of tasks that read no earlier stages, and so find nothing lost."""
    results = decode_results(table)
    finished = [result for result in results if isinstance(result, Result)]
    assert len(finished) == len(results)
    return finished
