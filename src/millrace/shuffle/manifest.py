"""The stage's choices: which attempt of each map task counts, and what was decided at run time.

Invariant: a manifest is written once and never changed. Readers follow it and nothing else, so an
attempt that finishes later, or is beside the chosen one, changes no answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.ids import AttemptId, FolderId, MapTask, QueryId, StageId
from millrace.shuffle.index import decode_schema, encode_schema
from millrace.shuffle.stage_entries import VERSION as ENTRIES_VERSION
from millrace.shuffle.stage_entries import ColumnSums, MergedRange
from millrace.storage import documents
from millrace.storage.documents import Document
from millrace.storage.layout import is_folder_id, parse_reference

VERSION: Final = 1
_IDS: Final = ("place", "query_id", "stage_id", "map_task", "attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The attempt that counts for one map task of this stage, and its folder.

    `folder` is None for the workspace's own folder, else the id of a host's folder, whose agent
    serves it. `attempt` may belong to another run: then it was reused.
    """

    map_task: MapTask
    attempt: AttemptId
    folder: FolderId | None
    content: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One stage, decided."""

    query_id: QueryId
    stage_id: StageId
    created_at_ms: int
    partitions: int
    partitioner: Mapping[str, Any]
    schema: pa.Schema
    chosen: tuple[Choice, ...]
    partition_rows: tuple[int, ...]
    partition_bytes: tuple[int, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)
    entries: ColumnSums | None = None
    """Of `entries.bin`; None if there is none, as in manifests of earlier versions."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """How the stage came about, for people: see `stage_record`. Not sent to tasks."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle choices as columns: tasks are sent it, and there may be very many of them."""
        left_out = ("chosen", "record")
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        return _unpacked, (fields, pack_choices(self.chosen))

    @property
    def reused(self) -> tuple[Choice, ...]:
        """Choices that point into another run."""
        return tuple(c for c in self.chosen if c.attempt.task.query_id != self.query_id)


def pack_choices(chosen: Sequence[Choice]) -> bytes:
    """Choices as few bytes. Numbers that count up are kept as differences, which pack well."""
    tasks = [choice.attempt.task for choice in chosen]
    ids = np.array(
        [
            (c.map_task, t.query_id, t.stage_id, t.map_task, c.attempt.attempt)
            for c, t in zip(chosen, tasks, strict=True)
        ],
        np.uint64,
    ).reshape(-1, len(_IDS))
    steps = np.diff(ids, axis=0, prepend=np.zeros((1, len(_IDS)), np.uint64))
    table = pa.table(
        {
            **{name: steps[:, number] for number, name in enumerate(_IDS)},
            "folder": pa.array([c.folder for c in chosen], pa.string()).dictionary_encode(),
            "content": pa.array([c.content for c in chosen], pa.string()),
            "rows": pa.array([c.rows for c in chosen], pa.uint64()),
            "bytes": pa.array([c.bytes for c in chosen], pa.uint64()),
        }
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(fields: dict[str, Any], packed: bytes) -> Manifest:
    table = pa.ipc.open_stream(packed).read_all()
    ids = [np.cumsum(table[name].to_numpy()).tolist() for name in _IDS]
    others = [table[name].to_pylist() for name in ("folder", "content", "rows", "bytes")]
    chosen = tuple(
        Choice(
            map_task=MapTask(place),
            attempt=AttemptId.of(query_id, stage_id, map_task, attempt),
            folder=folder,
            content=content,
            rows=rows,
            bytes=size,
        )
        for place, query_id, stage_id, map_task, attempt, folder, content, rows, size in zip(
            *ids, *others, strict=True
        )
    )
    return Manifest(**fields, chosen=chosen)


def encode(manifest: Manifest, *, workspace: str | None = None) -> bytes:
    """Write as `manifest.json` of a workspace."""
    document = {
        "version": VERSION,
        documents.WORKSPACE: workspace,
        "query_id": manifest.query_id,
        "stage_id": manifest.stage_id,
        "created_at_ms": manifest.created_at_ms,
        "partitions": manifest.partitions,
        "partitioner": manifest.partitioner,
        "schema": encode_schema(manifest.schema),
        "choices": manifest.choices,
        "partition_rows": manifest.partition_rows,
        "partition_bytes": manifest.partition_bytes,
        "entries": _encode_sums(manifest.entries),
        "record": manifest.record,
        "chosen": [
            {
                "map_task": choice.map_task,
                "attempt": str(choice.attempt),
                "folder": choice.folder,
                "content": choice.content,
                "rows": choice.rows,
                "bytes": choice.bytes,
            }
            for choice in manifest.chosen
        ],
    }
    return documents.seal(document, indent=1)


def decode(data: bytes, *, where: str, workspace: str | None = None) -> Manifest:
    """Read `manifest.json`; one that belongs to another workspace is refused."""
    return documents.load(
        data,
        _from_document,
        where=where,
        what="a manifest",
        to_fix="run the shuffle again, or restore the file",
        version=VERSION,
        workspace=workspace,
    )


def _from_document(document: Document) -> Manifest:
    decided = Manifest(
        query_id=QueryId(document.whole("query_id")),
        stage_id=StageId(document.whole("stage_id")),
        created_at_ms=document.whole("created_at_ms"),
        partitions=document.whole("partitions"),
        partitioner=document.table("partitioner"),
        schema=decode_schema(document.text("schema")),
        chosen=tuple(_choice(entry) for entry in document.documents("chosen")),
        partition_rows=document.wholes("partition_rows"),
        partition_bytes=document.wholes("partition_bytes"),
        choices=document.table("choices"),
        entries=_sums(document.table("entries")),
        record=document.table("record"),
    )
    counts = {len(decided.partition_rows), len(decided.partition_bytes), decided.partitions}
    if len(counts) != 1:
        raise ValueError(f"{decided.partitions} partitions, and not one count for each")
    entries = decided.entries
    if entries is not None and (
        entries.outputs != len(decided.chosen) or len(entries.checksums) != 8 * decided.partitions
    ):
        raise ValueError(f"entries of {entries.outputs} outputs, expected {len(decided.chosen)}")
    return decided


def _encode_sums(entries: ColumnSums | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    checksums = base64.b64encode(entries.checksums).decode()
    merged = [[each.first, each.count, each.digest] for each in entries.merged]
    return {
        "version": ENTRIES_VERSION,
        "outputs": entries.outputs,
        "checksums": checksums,
        "merged": merged,
    }


def _sums(fields: Mapping[str, Any]) -> ColumnSums | None:
    if fields.get("version") != ENTRIES_VERSION:
        return None  # None, or a later version's: the indexes of the outputs are read.
    document = Document(fields)
    checksums = base64.b64decode(document.text("checksums"), validate=True)
    merged = tuple(
        MergedRange(int(first), int(count), str(digest))
        for first, count, digest in document.items("merged")
    )
    return ColumnSums(document.whole("outputs"), checksums, merged)


def encode_references(attempts: Sequence[AttemptId]) -> bytes:
    """Write as `reusing.json`: the attempts a running stage relies on."""
    return documents.seal({"version": VERSION, "attempts": [str(a) for a in attempts]})


def decode_references(data: bytes, *, where: str) -> tuple[AttemptId, ...]:
    """Read `reusing.json`."""
    return documents.load(
        data,
        lambda document: tuple(parse_attempt(str(text)) for text in document.items("attempts")),
        where=where,
        what="a list of attempts",
        to_fix="drop the run that it belongs to",
        version=VERSION,
    )


def parse_attempt(text: str) -> AttemptId:
    """Read `query/stage/map_task/attempt`."""
    attempt = None if "-" in text else parse_reference(text.replace("/", "-"))
    if attempt is None:
        raise ValueError(f"{text!r} is no attempt")
    return attempt


def _choice(entry: Document) -> Choice:
    folder = entry.text_or_none("folder")
    if folder is not None and not is_folder_id(folder):
        raise ValueError(f"{folder!r} is no folder's id")
    return Choice(
        map_task=MapTask(entry.whole("map_task")),
        attempt=parse_attempt(entry.text("attempt")),
        folder=None if folder is None else FolderId(folder),
        content=entry.text("content"),
        rows=entry.whole("rows"),
        bytes=entry.whole("bytes"),
    )
