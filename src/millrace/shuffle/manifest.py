"""The stage's choices: which attempt of each map task counts, and what was decided at run time.

Invariant: a manifest is written once and never changed. Readers follow it and nothing else, so an
attempt that finishes later, or lies beside the chosen one, changes no answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.errors import FormatError
from millrace.ids import AttemptId, FolderId, MapTask, QueryId, StageId
from millrace.shuffle.index import decode_schema, encode_schema

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The attempt that counts for one map task of this stage, and the folder it lies in.

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


def encode(manifest: Manifest) -> bytes:
    """Write as `manifest.json`."""
    document = {
        "version": VERSION,
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
    return json.dumps(document, indent=1).encode()


def decode(data: bytes, *, where: str) -> Manifest:
    """Read `manifest.json`."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise FormatError(
                f"{where} has manifest version {document['version']}, this Millrace reads "
                f"version {VERSION}\n"
                "  to fix: read it with the Millrace that wrote it, or a newer one"
            )
        return Manifest(
            query_id=QueryId(document["query_id"]),
            stage_id=StageId(document["stage_id"]),
            created_at_ms=document["created_at_ms"],
            partitions=document["partitions"],
            partitioner=document["partitioner"],
            schema=decode_schema(document["schema"]),
            chosen=tuple(_choice(entry) for entry in document["chosen"]),
            partition_rows=tuple(document["partition_rows"]),
            partition_bytes=tuple(document["partition_bytes"]),
            choices=document["choices"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise FormatError(
            f"{where} cannot be read as a manifest: {type(error).__name__}: {error}\n"
            "  to fix: run the shuffle again"
        ) from error


def encode_references(attempts: Sequence[AttemptId]) -> bytes:
    """Write as `reusing.json`: the attempts a running stage relies on."""
    return json.dumps({"version": VERSION, "attempts": [str(a) for a in attempts]}).encode()


def decode_references(data: bytes, *, where: str) -> tuple[AttemptId, ...]:
    """Read `reusing.json`."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise FormatError(
                f"{where} has version {document['version']}, this Millrace reads {VERSION}\n"
                "  to fix: clean up with the Millrace that wrote it, or a newer one"
            )
        return tuple(parse_attempt(text) for text in document["attempts"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{where} cannot be read: {type(error).__name__}: {error}\n"
            "  to fix: drop the run that it belongs to"
        ) from error


def parse_attempt(text: str) -> AttemptId:
    """Read `query/stage/map_task/attempt`."""
    query_id, stage_id, map_task, attempt = (int(part) for part in text.split("/"))
    return AttemptId.of(query_id, stage_id, map_task, attempt)


def _choice(entry: Mapping[str, Any]) -> Choice:
    folder = entry["folder"]
    return Choice(
        map_task=MapTask(entry["map_task"]),
        attempt=parse_attempt(entry["attempt"]),
        folder=None if folder is None else FolderId(folder),
        content=entry["content"],
        rows=entry["rows"],
        bytes=entry["bytes"],
    )
