"""Reads what map tasks wrote: an attempt's index, a partition's bytes, a partition's rows.

Invariant: no byte is decoded before length and checksum were found right. Local files are mapped,
so rows of uncompressed payloads are not copied. What is missing is `DataLost`, never empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from millrace.errors import Corrupt, DataLost, FormatError, MapOutputMissing, UserError
from millrace.ids import Attempt, AttemptId, Latest, MapTaskId
from millrace.names import existing, shown
from millrace.shuffle import attempts
from millrace.shuffle.attempts import AttemptState, Finished, Newer, Unfinished
from millrace.shuffle.index import MapTaskIndex, decode_bin, decode_json, is_newer
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.shuffle.payload import checksum
from millrace.storage import layout
from millrace.storage.store import Store, storage_errors
from millrace.text import did_you_mean


def find_index(store: Store, attempt: AttemptId) -> MapTaskIndex | None:
    """The index of an attempt; None if it has none, an error if it has one that is not valid.

    Either of its two files is enough: if one is damaged, the other is read.
    """
    problem: Corrupt | None = None
    for name, decode in ((layout.INDEX_BIN, decode_bin), (layout.INDEX_JSON, decode_json)):
        relative = f"{layout.attempt_folder(attempt)}/{name}"
        data = store.read(relative)
        if data is None:
            continue
        where = store.path(relative)
        try:
            index = decode(data, where=where)
        except Corrupt as error:
            problem = problem or error
            continue
        if index.id == attempt:
            return index
        problem = problem or Corrupt(
            f"{where} is the index of another attempt\n  found: {index.id}\n"
            "  to fix: put the folder back where it was written"
        )
    if problem is not None:
        raise problem
    return None


def index_or_none(store: Store, attempt: AttemptId) -> MapTaskIndex | None:
    """The index of an attempt; None if it has none that is valid."""
    try:
        return find_index(store, attempt)
    except (Corrupt, FormatError):
        return None


def read_index(store: Store, task: MapTaskId, attempt: Attempt | Latest) -> MapTaskIndex:
    """The index of just this attempt, or of the highest one that has a valid index."""
    if isinstance(attempt, Latest):
        newest = latest_attempt(store, task)
        if newest is None:
            path = store.path(layout.task_folder(task))
            raise MapOutputMissing(
                f"no finished attempt at {path}\n"
                f"  attempts begun: {store.numbers(layout.task_folder(task)) or 'none'}\n"
                "  to fix: run the map task again"
            )
        attempt = newest
    index = find_index(store, AttemptId(task, attempt))
    if index is None:
        path = store.path(layout.task_folder(task))
        finished = [f.id.attempt for f in list_attempts(store, task) if isinstance(f, Finished)]
        raise _missing(path, attempt=attempt, finished=finished)
    return index


def latest_attempt(store: Store, task: MapTaskId) -> Attempt | None:
    """The highest attempt with a valid index; None if no attempt has one."""
    return attempts.latest(list_attempts(store, task))


def list_attempts(
    store: Store, task: MapTaskId, *, run_is_alive: bool = False
) -> list[AttemptState]:
    """All attempts of a map task, lowest first."""
    listed: list[AttemptState] = []
    for number in store.numbers(layout.task_folder(task)):
        attempt = AttemptId(task, Attempt(number))
        # One that is not valid does not exist, for every reader.
        index = index_or_none(store, attempt)
        if index is not None:
            listed.append(Finished(id=attempt, created_at_ms=index.created_at_ms))
            continue
        folder = layout.attempt_folder(attempt)
        if is_newer(store.read(f"{folder}/{layout.INDEX_BIN}") or b""):
            listed.append(Newer(id=attempt))
            continue
        changed = store.changed_at_ms(folder)
        if changed is not None:
            listed.append(Unfinished(id=attempt, changed_at_ms=changed, run_is_alive=run_is_alive))
    return listed


def partition_meta(index: MapTaskIndex, partition: int) -> PartitionMeta:
    """The entry of a partition; a number outside the shuffle is an error."""
    return index.partitions[check_partition(partition, len(index.partitions))]


def check_partition(partition: object, count: int) -> int:
    """Raise unless this is the number of one of `count` partitions."""
    is_number = isinstance(partition, int) and not isinstance(partition, bool)
    if not isinstance(partition, int) or not is_number or not 0 <= partition < count:
        raise UserError(
            f"no partition {shown(partition)}\n  found: partitions 0 to {count - 1}\n"
            "  to fix: give the number of one of these"
        )
    return partition


def map_partition(store: Store, attempt: AttemptId, meta: PartitionMeta) -> pa.Buffer:
    """The bytes of a partition, mapped and found right. An empty partition has none."""
    if meta.file is None:
        return pa.py_buffer(b"")
    data = map_range(store, attempt, meta)
    check_bytes(data, meta, where=store.path(f"{layout.attempt_folder(attempt)}/{meta.file}"))
    return data


def map_partitions(
    store: Store, parts: Sequence[tuple[AttemptId, PartitionMeta]]
) -> Iterator[pa.Buffer]:
    """The bytes of many partitions, in order; from a bucket some are fetched ahead."""
    return store.ahead(
        lambda part: map_partition(store, *part), parts, size_of=lambda part: part[1].bytes
    )


def map_range(store: Store, attempt: AttemptId, meta: PartitionMeta) -> pa.Buffer:
    """The bytes of a partition, mapped, their length checked and their checksum not."""
    relative = _payload_name(attempt, meta)
    with _loading(store, relative, attempt, meta):
        size, data = store.load(relative, meta.offset, meta.bytes)
    if size < meta.offset + meta.bytes:
        raise _cut_short(store.path(relative), attempt, meta, size)
    return data


def read_range(
    store: Store, attempt: AttemptId, meta: PartitionMeta, into: memoryview, start: int = 0
) -> None:
    """The same from `start` on, read into memory: for few bytes quicker than mapping."""
    relative = _payload_name(attempt, meta)
    with _loading(store, relative, attempt, meta):
        size = store.load_into(relative, meta.offset + start, into)
    if size is not None:
        raise _cut_short(store.path(relative), attempt, meta, size)


def _payload_name(attempt: AttemptId, meta: PartitionMeta) -> str:
    assert meta.file is not None
    return f"{layout.attempt_folder(attempt)}/{meta.file}"


@contextmanager
def _loading(
    store: Store, relative: str, attempt: AttemptId, meta: PartitionMeta
) -> Iterator[None]:
    with storage_errors(f"reading {relative}"):
        try:
            yield
        except FileNotFoundError as error:
            path = store.path(relative)
            raise DataLost(
                f"{path} is gone\n"
                f"  expected: {meta.rows} rows in {meta.bytes} bytes\n"
                f"  to fix: run map task {attempt.task.map_task} again"
            ) from error


def _cut_short(path: str, attempt: AttemptId, meta: PartitionMeta, size: int) -> Corrupt:
    return Corrupt(
        f"{path} is cut short\n"
        f"  expected: at least {meta.offset + meta.bytes} bytes, found: {size}\n"
        f"  to fix: run map task {attempt.task.map_task} again"
    )


def check_bytes(data: pa.Buffer, meta: PartitionMeta, *, where: str) -> None:
    """Compare length and checksum with the index."""
    check_content(data.size, checksum(data), meta, where=where)


def check_content(size: int, checksum: str, meta: PartitionMeta, *, where: str) -> None:
    """Compare a length and a checksum with the index."""
    if size != meta.bytes:
        raise Corrupt(
            f"{where}: partition {meta.reduce_partition} has the wrong length\n"
            f"  expected: {meta.bytes} bytes, found: {size}\n  to fix: run the map task again"
        )
    if checksum != meta.checksum:
        raise Corrupt(
            f"{where}: partition {meta.reduce_partition} has the wrong checksum\n"
            f"  expected: {meta.checksum}, found: {checksum}\n"
            "  to fix: run the shuffle again with reuse='verified'"
        )


def fetch_chunks(
    store: Store, attempt: AttemptId, meta: PartitionMeta, *, chunk_bytes: int, start: int = 0
) -> Iterator[pa.Buffer]:
    """The bytes of a partition from `start` on, in pieces. The caller checks them joined."""
    if chunk_bytes < 1:
        raise UserError(f"chunk size is {chunk_bytes}\n  to fix: give at least 1 byte")
    if not 0 <= start <= meta.bytes:
        raise UserError(
            f"start {start} is outside the partition's {meta.bytes} bytes\n"
            "  to fix: begin within it"
        )
    if meta.file is None:
        return
    data = map_range(store, attempt, meta)
    for offset in range(start, meta.bytes, chunk_bytes):
        yield data.slice(offset, min(chunk_bytes, meta.bytes - offset))


def decode(
    data: pa.Buffer, schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition's checked bytes, all columns or some."""
    if not data.size:
        return
    options = pa.ipc.IpcReadOptions(
        included_fields=None if columns is None else field_numbers(schema, columns),
        use_threads=False,
    )
    with pa.ipc.open_stream(data, options=options) as stream:
        for batch in stream:
            yield batch if columns is None else batch.select(list(columns))


def field_numbers(schema: pa.Schema, columns: Sequence[str]) -> list[int]:
    """Positions of the columns; an unknown one is an error that names the known ones."""
    if isinstance(columns, str):
        raise UserError(
            f"columns is the text {columns!r}\n  found: no list\n  to fix: give [{columns!r}]"
        )
    given: Sequence[object] = columns
    for name in given:
        places = schema.get_all_field_indices(name) if isinstance(name, str) else []
        if not places:
            raise UserError(
                f"there is no column {shown(name)}\n"
                f"  found: columns {existing(str(name), schema.names)}\n"
                f"  to fix: {did_you_mean(str(name), schema.names, 'name one of these')}"
            )
        if len(places) > 1:
            raise UserError(
                f"column {name!r} is ambiguous\n  {len(places)} columns have that name\n"
                "  to fix: read all columns"
            )
    return [schema.get_field_index(name) for name in columns]


def _missing(path: str, *, attempt: int, finished: Sequence[int]) -> MapOutputMissing:
    have = ", ".join(map(str, finished)) or "none"
    hint = f"read attempt {max(finished)}" if finished else "run the map task again"
    return MapOutputMissing(
        f"no map output at {path}/{attempt}\n  attempts found: {have}\n  to fix: {hint}"
    )
