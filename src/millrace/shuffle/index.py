"""What an attempt wrote: one entry per reduce partition, and how the index is written to a file.

`index.bin` has a document and, behind it, entries of a fixed width. In version 1 its document was
that of `index.json`, with the entries in it; it is still read.

Invariant: an index that decodes describes every partition from 0 to the count exactly once, and
names no file outside its attempt's folder. Fields it does not know are left alone, so that later
versions may add some; a change that older readers would misread raises the version.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from millrace.errors import FormatError
from millrace.ids import ID_MAX, AttemptId, Fingerprint, ReducePartition
from millrace.names import shown
from millrace.shuffle import partition_entries
from millrace.shuffle.partition_entries import ENTRY, EntryArray, PartitionEntries, PartitionMeta
from millrace.storage import documents
from millrace.storage.documents import Document
from millrace.storage.layout import is_payload_name

MAGIC: Final = b"FFQI"
VERSION: Final = 2
"""Of `index.bin`."""
_JSON_VERSION: Final = 1
"""Of the document with all entries: `index.json`, and `index.bin` of version 1."""
_WHAT: Final = "an index"
_TO_FIX: Final = "run the map task again"
_HEADER: Final = struct.Struct("<4sII")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTaskIndex:
    """Everything an attempt wrote, and what it was made from.

    `made_from` is empty for work that can never be recognised. `recent` holds checksums
    of input files whose times alone did not tell their versions apart.
    """

    id: AttemptId
    created_at_ms: int
    partitions: Sequence[PartitionMeta]
    schema: pa.Schema
    fingerprint: Fingerprint | None = None
    made_from: Mapping[str, Any] = field(default_factory=dict)
    recent: Mapping[str, str] = field(default_factory=dict)
    content: str | None = field(default=None, compare=False)
    """What `content_checksum` gave when the index was written, if it says so."""

    def __post_init__(self) -> None:
        """Keep entries as few bytes, however they were given."""
        if not isinstance(self.partitions, PartitionEntries):
            object.__setattr__(self, "partitions", PartitionEntries.of(self.partitions))

    @property
    def entries(self) -> EntryArray:
        """The entries of all partitions."""
        assert isinstance(self.partitions, PartitionEntries), "made so when it was made"
        return self.partitions.array

    @property
    def rows(self) -> int:
        """Rows over all partitions."""
        return int(self.entries["rows"].sum())

    @property
    def bytes(self) -> int:
        """Payload bytes over all partitions."""
        return int(self.entries["bytes"].sum())

    def content_checksum(self) -> str:
        """One checksum for all that was written; equal for equal output."""
        if self.content is not None:
            return self.content
        digest = xxhash.xxh3_64()
        for part in self.partitions:
            digest.update(f"{part.rows}:{part.checksum};".encode())
        return str(digest.hexdigest())


def encode_json(index: MapTaskIndex) -> bytes:
    """Write as `index.json`, with all entries, for people and other programs."""
    document = _head(index, _JSON_VERSION)
    document["partitions"] = [
        {
            "reduce_partition": part.reduce_partition,
            "file": part.file,
            "offset": part.offset,
            "bytes": part.bytes,
            "rows": part.rows,
            "batches": part.batches,
            "checksum": part.checksum,
        }
        for part in index.partitions
    ]
    return documents.seal(document)


def encode_bin(index: MapTaskIndex) -> bytes:
    """Write as `index.bin`: a document, and behind it the entries."""
    entries = index.entries.tobytes()
    document = _head(index, VERSION) | {
        "content": index.content_checksum(),
        "partitions": len(index.partitions),
        "entries": xxhash.xxh3_64_hexdigest(entries),
    }
    head = documents.seal(document)
    return _HEADER.pack(MAGIC, VERSION, len(head)) + head + entries


def _head(index: MapTaskIndex, version: int) -> dict[str, Any]:
    task = index.id.task
    return {
        "version": version,
        "query_id": task.query_id,
        "stage_id": task.stage_id,
        "map_task": task.map_task,
        "attempt": index.id.attempt,
        "created_at_ms": index.created_at_ms,
        "fingerprint": index.fingerprint,
        "made_from": index.made_from,
        "recent": index.recent,
        "schema": encode_schema(index.schema),
    }


def decode_bin(data: bytes, *, where: str) -> MapTaskIndex:
    """Read `index.bin`. `where` is the path that errors name."""
    if len(data) < _HEADER.size:
        problem = f"{len(data)} bytes, a header has {_HEADER.size}: it is cut short"
        raise documents.damaged(where, _WHAT, problem, _TO_FIX)
    magic, version, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        problem = f"it starts with {magic!r}, an index with {MAGIC!r}"
        raise documents.damaged(where, _WHAT, problem, _TO_FIX)
    if version not in (_JSON_VERSION, VERSION):
        raise FormatError(
            f"{where} has index version {version}, this Millrace reads version {VERSION}\n"
            "  to fix: read it with the Millrace that wrote it, or a newer one"
        )
    left = len(data) - _HEADER.size
    if left < length or (version == _JSON_VERSION and left != length):
        problem = f"{left} payload bytes, its header says {length}"
        raise documents.damaged(where, _WHAT, problem, _TO_FIX)
    head = data[_HEADER.size : _HEADER.size + length]
    if version == _JSON_VERSION:
        return decode_json(head, where=where)
    entries = data[_HEADER.size + length :]
    return documents.load(
        head,
        lambda document: _from_head(
            document, _entries(document, entries), document.text("content")
        ),
        where=where,
        what=_WHAT,
        to_fix=_TO_FIX,
        version=VERSION,
    )


def is_newer(data: bytes) -> bool:
    """Whether this is an `index.bin` that a newer Millrace wrote: not for this one to judge."""
    if len(data) < _HEADER.size:
        return False
    magic, version, _ = _HEADER.unpack_from(data)
    return bool(magic == MAGIC and version > VERSION)


def decode_json(data: bytes, *, where: str) -> MapTaskIndex:
    """Read `index.json`."""
    return documents.load(
        data, _from_document, where=where, what=_WHAT, to_fix=_TO_FIX, version=_JSON_VERSION
    )


def _from_document(document: Document) -> MapTaskIndex:
    partitions = tuple(map(_partition, document.items("partitions")))
    numbers = [part.reduce_partition for part in partitions]
    if numbers != list(range(len(numbers))):
        raise ValueError(f"partitions are numbered {numbers[:5]}..., expected 0, 1, 2, ...")
    return _from_head(document, PartitionEntries.of(partitions))


def _entries(document: Document, data: bytes) -> PartitionEntries:
    """The entries behind a document, found right."""
    count, size = document.whole("partitions"), ENTRY.itemsize
    if len(data) != count * size:
        raise ValueError(f"{len(data)} bytes of entries, {count} partitions have {count * size}")
    digest = xxhash.xxh3_64_hexdigest(data)
    if digest != document.text("entries"):
        raise ValueError(f"its entries have checksum {digest}, it says {document.text('entries')}")
    array = np.frombuffer(data, ENTRY)
    partition_entries.check(array)
    return PartitionEntries(array)


def _from_head(
    document: Document, partitions: PartitionEntries, content: str | None = None
) -> MapTaskIndex:
    ids = [document.whole(name) for name in ("query_id", "stage_id", "map_task", "attempt")]
    recent = document.table("recent")
    if not all(isinstance(checksum, str) for checksum in recent.values()):
        raise ValueError(f"recent is {shown(recent)}, expected texts")
    fingerprint = document.text_or_none("fingerprint")
    return MapTaskIndex(
        id=AttemptId.of(*ids),
        created_at_ms=document.whole("created_at_ms"),
        partitions=partitions,
        schema=decode_schema(document.text("schema")),
        fingerprint=None if fingerprint is None else Fingerprint(fingerprint),
        made_from=document.table("made_from"),
        recent=recent,
        content=content,
    )


def _partition(entry: Mapping[str, Any]) -> PartitionMeta:
    part = PartitionMeta(
        reduce_partition=ReducePartition(entry["reduce_partition"]),
        file=entry["file"],
        offset=entry["offset"],
        bytes=entry["bytes"],
        rows=entry["rows"],
        batches=entry["batches"],
        checksum=entry["checksum"],
    )
    # There may be very many: they are looked at one field after the other only if that is needed.
    numbers = (part.reduce_partition, part.offset, part.bytes, part.rows, part.batches)
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) > ID_MAX:
        for name in ("reduce_partition", "offset", "bytes", "rows", "batches"):
            Document(entry).whole(name)
    if part.file is not None or part.checksum is not None:
        _check_texts(entry)
    if part.file is None and part.rows:
        raise ValueError(f"partition {part.reduce_partition} has {part.rows} rows and no file")
    if part.file is not None and not is_payload_name(part.file):
        raise ValueError(f"partition {part.reduce_partition} names the file {part.file!r}")
    if part.file is not None and (not part.bytes or not part.checksum):
        raise ValueError(f"partition {part.reduce_partition} has no usable range or checksum")
    return part


def _check_texts(entry: Mapping[str, Any]) -> None:
    if type(entry["file"]) is not str or type(entry["checksum"]) is not str:
        for name in ("file", "checksum"):
            Document(entry).text_or_none(name)


def encode_schema(schema: pa.Schema) -> str:
    """Write an Arrow schema as text: base64 of its IPC message."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@lru_cache(maxsize=64)  # The indexes of a stage have one: a driver has very many of them.
def decode_schema(text: str) -> pa.Schema:
    """Read what `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
