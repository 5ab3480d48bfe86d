"""Writes one attempt of a map task.

Invariant: the index is made exclusively and last, so an attempt is there whole or not at all.
Memory is bounded by `Config.task_memory_bytes_max` for an input of any size; a partition is made
of few, large batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import AttemptExists, S3Unreachable, StorageError
from millrace.faults import fault
from millrace.identity.fingerprint import fingerprint
from millrace.identity.schemas import conform_in_pieces, plain_schema
from millrace.ids import Attempt, AttemptId, MapTaskId
from millrace.keys import Partitioner, split_stream
from millrace.shuffle import reuse
from millrace.shuffle.index import MapTaskIndex, encode_bin, encode_json
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.shuffle.payload import ManyPartitions, OnePartition
from millrace.storage import layout
from millrace.storage.store import Store, storage_errors

_CLAIM_TRIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What an output is made from, as far as it decides whether it can be used again."""

    made_from: Mapping[str, Any]
    recent: Mapping[str, str] = field(default_factory=dict)


def begin_attempt(store: Store, attempt: AttemptId) -> None:
    """Claim an attempt's folder; a second caller is refused."""
    if not store.claim(layout.attempt_folder(attempt)):
        raise _exists(store, attempt, "was already begun")


def begin_next_attempt(store: Store, task: MapTaskId, first: Attempt) -> AttemptId:
    """Claim the lowest attempt from `first` on that is above every attempt on disk."""
    for _ in range(_CLAIM_TRIES_MAX):
        numbers = store.numbers(layout.task_folder(task))
        attempt = AttemptId(task, Attempt(max(first, numbers[-1] + 1) if numbers else first))
        if store.claim(layout.attempt_folder(attempt)):
            return attempt
    raise AttemptExists(
        f"no attempt of {task} could be claimed in {_CLAIM_TRIES_MAX} tries\n"
        "  to fix: run the task again"
    )


def write_map_output(
    store: Store,
    attempt: AttemptId,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema,
    partitioner: Partitioner,
    config: Config,
    now_ms: Callable[[], int],
    provenance: Provenance | None = None,
) -> MapTaskIndex:
    """Write the rows of an attempt that was begun, cut by `partitioner`, and make its index.

    If that fails, nothing of the attempt is left. A folder that is not empty
    belongs to another writer: `AttemptExists`, and it stays as it is.
    """
    plain = plain_schema(schema)
    folder = layout.attempt_folder(attempt)
    if store.names(folder):
        raise _exists(store, attempt, "has files already")
    try:
        partitioner.check(plain)
        metas = _write_payload(store, attempt, batches, plain, partitioner, config)
        fault("shuffle.write.before_index", attempt.task.stage_id)
        index = MapTaskIndex(
            id=attempt,
            created_at_ms=now_ms(),
            partitions=tuple(metas),
            schema=plain,
            fingerprint=None if provenance is None else fingerprint(provenance.made_from),
            made_from={} if provenance is None else provenance.made_from,
            recent={} if provenance is None else provenance.recent,
        )
        if provenance is not None:
            reuse.note(store, attempt, provenance.made_from)
        _create_index(store, index, sync=config.sync)
    except AttemptExists:
        raise  # The files there are another writer's.
    except BaseException:
        # What cannot be removed now has no index; clean-up sweeps it later.
        with contextlib.suppress(StorageError, S3Unreachable):
            store.discard(folder)
        raise
    fault("shuffle.write.after_index", attempt.task.stage_id)
    return index


def _write_payload(
    store: Store,
    attempt: AttemptId,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    partitioner: Partitioner,
    config: Config,
) -> list[PartitionMeta]:
    relative = layout.attempt_folder(attempt)
    doing = f"writing map output {store.path(relative)}"
    with store.payload_folder(relative) as folder:
        metas = _write_files(folder, attempt, batches, schema, partitioner, config, doing)
        names = sorted({meta.file for meta in metas if meta.file is not None})
        fault("shuffle.write.before_keep", attempt.task.stage_id)
        with storage_errors(doing):
            store.keep(folder, relative, names, sync=config.sync)
    return metas


def _write_files(
    folder: str,
    attempt: AttemptId,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    partitioner: Partitioner,
    config: Config,
    doing: str,
) -> list[PartitionMeta]:
    count = partitioner.partitions
    payload: ManyPartitions | OnePartition = (
        OnePartition(folder, schema, config)
        if count == 1
        else ManyPartitions(folder, schema, count, config)
    )
    # Gathered rows, their copy in one piece and their reordered copy exist side by side. As much
    # again may wait to be written, and a quarter is left to the reader of the input.
    gather_bytes = max(1, config.task_memory_bytes_max // 8)
    try:
        conformed = _conformed(batches, schema, gather_bytes)
        for split in split_stream(conformed, partitioner, gather_bytes):
            with storage_errors(doing):
                payload.write(split)
            fault("shuffle.write.after_split", attempt.task.stage_id)
        with storage_errors(doing):
            return payload.finish()
    except BaseException:
        payload.abort()
        raise


def _conformed(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, piece_bytes: int
) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        yield from conform_in_pieces(
            batch, schema, where=f"batch {number}", bytes_target=piece_bytes
        )


def _create_index(store: Store, index: MapTaskIndex, *, sync: bool) -> None:
    folder = layout.attempt_folder(index.id)
    indexes = [(layout.INDEX_BIN, encode_bin(index))]
    # Among requests exactly one decides. The other file is for people with a disk to look at.
    if not store.remote:
        indexes.insert(0, (layout.INDEX_JSON, encode_json(index)))
    for name, data in indexes:
        if not store.create(f"{folder}/{name}", data, sync=sync):
            raise _exists(store, index.id, f"has an {name} already")
        fault("shuffle.write.between_indexes", index.id.task.stage_id)
    if sync:
        store.sync_folders(folder)


def _exists(store: Store, attempt: AttemptId, what: str) -> AttemptExists:
    return AttemptExists(
        f"attempt {attempt} {what}\n"
        f"  found: {store.path(layout.attempt_folder(attempt))}\n"
        "  to fix: use the next attempt number"
    )
