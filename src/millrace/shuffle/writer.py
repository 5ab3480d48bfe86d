"""Writes one attempt of a map task.

Invariant: the index is made exclusively and last, so an attempt is there whole or not at all.
Memory is bounded by `Config.task_memory_bytes_max` whatever the input's size; a partition is made
of few, large batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.errors import AttemptExists
from millrace.faults import fault
from millrace.ids import Attempt, AttemptId, MapTaskId
from millrace.keys import Partitioner, Split, split_stream
from millrace.shuffle import layout, reuse
from millrace.shuffle.fingerprint import fingerprint
from millrace.shuffle.index import MapTaskIndex, PartitionMeta, encode_bin, encode_json
from millrace.shuffle.payload import OneFile, PartFiles
from millrace.shuffle.schema import conform, plain_schema
from millrace.shuffle.store import LocalStore, storage_errors, sync_file, sync_folder


_CLAIM_TRIES_MAX: Final = 1000


class Payload(Protocol):
    """The two forms an attempt's rows are written in."""

    def write(self, split: Split) -> None:
        """Take rows that were cut into partitions."""

    def finish(self) -> list[PartitionMeta]:
        """Close the files and describe every partition."""

    def abort(self) -> None:
        """Let go of files after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What an output is made from, as far as it decides whether it can be used again."""

    made_from: Mapping[str, Any]
    recent: Mapping[str, str] = field(default_factory=dict)


def begin_attempt(store: LocalStore, attempt: AttemptId) -> None:
    """Claim an attempt's folder; whoever comes second is refused."""
    if not store.make_folder(layout.attempt_folder(attempt)):
        raise AttemptExists(
            f"attempt {attempt} was already begun\n"
            f"  found: {store.path(layout.attempt_folder(attempt))}\n"
            "  to fix: use the next attempt number"
        )


def begin_next_attempt(store: LocalStore, task: MapTaskId, first: Attempt) -> AttemptId:
    """Claim the lowest attempt from `first` on that is above every attempt on disk."""
    for _ in range(_CLAIM_TRIES_MAX):
        taken = store.numbers(layout.task_folder(task))
        attempt = AttemptId(task, Attempt(max(first, taken[-1] + 1) if taken else first))
        if store.make_folder(layout.attempt_folder(attempt)):
            return attempt
    raise AttemptExists(f"no attempt of {task} could be claimed in {_CLAIM_TRIES_MAX} tries")


def write_map_output(
    store: LocalStore,
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

    If that fails, for whatever reason, nothing of the attempt is left.
    """
    plain = plain_schema(schema)
    folder = layout.attempt_folder(attempt)
    with ExitStack() as undo:
        undo.callback(store.discard, folder)
        partitioner.check(plain)
        conformed = _conformed(batches, plain)
        metas = _write_payload(store.path(folder), conformed, plain, partitioner, config)
        fault("shuffle.write.before_index")
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
        undo.pop_all()
    fault("shuffle.write.after_index")
    return index


def _write_payload(
    folder: str,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    partitioner: Partitioner,
    config: Config,
) -> list[PartitionMeta]:
    one_file = partitioner.partitions > config.part_files_max
    kind = OneFile if one_file else PartFiles
    payload: Payload = kind(folder, schema, partitioner.partitions, config)
    # The gathered rows and their reordered copy exist side by side: a quarter each leaves half.
    gather_bytes = max(1, config.task_memory_bytes_max // 4)
    with storage_errors(f"writing map output {folder}"):
        try:
            for split in split_stream(batches, partitioner, gather_bytes):
                payload.write(split)
                fault("shuffle.write.after_split")
            metas = payload.finish()
        except BaseException:
            payload.abort()
            raise
        if config.sync:
            for name in sorted({meta.file for meta in metas if meta.file is not None}):
                sync_file(os.path.join(folder, name))
            sync_folder(folder)
    return metas


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if batch.num_rows:
            yield conform(batch, schema, where=f"batch {number}")


def _create_index(store: LocalStore, index: MapTaskIndex, *, sync: bool) -> None:
    folder = layout.attempt_folder(index.id)
    payload = encode_json(index)
    for name, data in ((layout.INDEX_JSON, payload), (layout.INDEX_BIN, encode_bin(payload))):
        if not store.create(f"{folder}/{name}", data, sync=sync):
            raise AttemptExists(
                f"attempt {index.id} already has an index\n"
                f"  found: {store.path(f'{folder}/{name}')}\n"
                "  to fix: use the next attempt number"
            )
        fault("shuffle.write.between_indexes")
