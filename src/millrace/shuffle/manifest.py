"""The stage's choices: which attempt of each map task counts, and what was decided at run time.

Invariant: a manifest is written once and never changed. Readers follow it and nothing else, so an
attempt that finishes later, or is beside the chosen one, changes no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.ids import AttemptId, FolderId, MapTask, QueryId, StageId
from millrace.shuffle.index import decode_schema, encode_schema
from millrace.storage import documents
from millrace.storage.documents import Document
from millrace.storage.layout import is_folder_id, parse_reference

VERSION: Final = 1


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

    @property
    def reused(self) -> tuple[Choice, ...]:
        """Choices that point into another run."""
        return tuple(c for c in self.chosen if c.attempt.task.query_id != self.query_id)


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
    )
    counts = {len(decided.partition_rows), len(decided.partition_bytes), decided.partitions}
    if len(counts) != 1:
        raise ValueError(f"{decided.partitions} partitions, and not one count for each")
    return decided


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
