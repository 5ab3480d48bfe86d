"""What agents and their clients say to each other. Pure: values in, bytes out, and back.

Invariant: whatever comes from the network is either the numbers it should be, each in its range, or
a `UserError`. No text that becomes part of a path is ever taken, and nothing is unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace import errors
from millrace.errors import MillraceError, UserError
from millrace.ids import (
    ID_MAX,
    LATEST,
    Attempt,
    FolderId,
    Latest,
    MapTask,
    MapTaskId,
    QueryId,
    ReducePartition,
    StageId,
)

PROTOCOL: Final = 1
TOKEN_HEADER: Final = "authorization"  # noqa: S105 - a header's name
FOLDER_HEADER: Final = "x-millrace-folder"

PING: Final = "ping"
RENEW: Final = "renew"
INDEX: Final = "index"
FIND: Final = "find"

# Flight turns an error with a long text into one of another class.
_ERROR_BYTES_MAX: Final = 1000
_LATEST_ON_THE_WIRE: Final = 0
_FOLDER: Final = re.compile(r"[0-9a-f]{16,64}")
_TASK_FIELDS: Final = ("query_id", "stage_id", "map_task", "attempt")
_RANGE_FIELDS: Final = (*_TASK_FIELDS, "partition", "start")
_TICKET_FIELDS: Final = ("ranges", "chunk_bytes")


@dataclass(frozen=True, slots=True)
class WhichAttempt:
    """One attempt of a map task, or its latest."""

    task: MapTaskId
    attempt: Attempt | Latest


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes of one partition from `start` on."""

    which: WhichAttempt
    partition: ReducePartition
    start: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """Bytes to be sent, range after range, in pieces of at most `chunk_bytes`."""

    ranges: tuple[ByteRange, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Work that may have been done before, and whether every byte of it is to be checked."""

    made_from: tuple[Mapping[str, Any], ...]
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPong:
    """Who answered a ping."""

    folder: FolderId
    version: str
    instance: str


def encode_ticket(ticket: Ticket) -> bytes:
    """Write a ticket."""
    ranges = [
        dict(zip(_RANGE_FIELDS, (*_task_values(r.which), r.partition, r.start), strict=True))
        for r in ticket.ranges
    ]
    return json.dumps({"ranges": ranges, "chunk_bytes": ticket.chunk_bytes}).encode()


def decode_ticket(data: bytes, *, chunk_bytes_max: int, ranges_max: int) -> Ticket:
    """Read a ticket, refusing whatever is not one."""
    document = _document(data, _TICKET_FIELDS, what="ticket")
    ranges = document["ranges"]
    if not isinstance(ranges, list) or not 1 <= len(ranges) <= ranges_max:
        raise UserError(
            f"not a ticket\n  expected: a list of 1 to {ranges_max} ranges\n"
            "  to fix: use the same version of Millrace on both sides"
        )
    chunk_bytes = _number(document["chunk_bytes"], "chunk_bytes", what="ticket")
    if not 1 <= chunk_bytes <= chunk_bytes_max:
        raise UserError(
            f"not a ticket: chunk_bytes is {chunk_bytes}\n  to fix: ask for 1 to {chunk_bytes_max}"
        )
    return Ticket(tuple(_range(entry) for entry in ranges), chunk_bytes)


def encode_which(which: WhichAttempt) -> bytes:
    """Write the question for an index."""
    return json.dumps(dict(zip(_TASK_FIELDS, _task_values(which), strict=True))).encode()


def decode_which(data: bytes) -> WhichAttempt:
    """Read the question for an index."""
    what = "question for an index"
    return _which(_numbers(_document(data, _TASK_FIELDS, what=what), what=what))


def encode_search(search: Search) -> bytes:
    """Write the question for finished work."""
    return json.dumps({"made_from": search.made_from, "verify": search.verify}).encode()


def decode_search(data: bytes) -> Search:
    """Read the question for finished work."""
    document = _document(data, ("made_from", "verify"), what="question for finished work")
    made_from, verify = document["made_from"], document["verify"]
    if not isinstance(verify, bool) or not isinstance(made_from, list):
        raise UserError(
            "not a question for finished work: wrong types\n"
            "  to fix: use the same version of Millrace on both sides"
        )
    return Search(made_from=tuple(_provenance(entry) for entry in made_from), verify=verify)


def encode_pong(pong: AgentPong) -> bytes:
    """Write the answer to a ping."""
    document = {"protocol": PROTOCOL, "folder": pong.folder, "version": pong.version}
    return json.dumps({**document, "instance": pong.instance}).encode()


def decode_pong(data: bytes) -> AgentPong:
    """Read the answer to a ping."""
    document = _document(data, ("protocol", "folder", "version", "instance"), what="pong")
    if document["protocol"] != PROTOCOL:
        raise UserError(
            f"the agent speaks protocol {document['protocol']}, this Millrace {PROTOCOL}\n"
            f"  found: an agent of Millrace {document['version']}\n"
            "  to fix: run the same version of Millrace on all hosts"
        )
    return AgentPong(
        folder=FolderId(str(document["folder"])),
        version=str(document["version"]),
        instance=str(document["instance"]),
    )


def encode_error(error: MillraceError) -> bytes:
    """Write an error, short enough to keep its kind on the way."""
    text = str(error)
    while len(text.encode()) > _ERROR_BYTES_MAX:
        text = text[: len(text) * 9 // 10].rstrip("\u2026") + "\u2026"
    return json.dumps({"code": type(error).__name__, "text": text}, ensure_ascii=False).encode()


def decode_error(data: bytes | None) -> MillraceError | None:
    """The error that an agent sent; None if these bytes are not from an agent."""
    try:
        document = json.loads(data or b"")
        code, text = document["code"], document["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    kind = getattr(errors, str(code), MillraceError)
    if not (isinstance(kind, type) and issubclass(kind, MillraceError)):
        kind = MillraceError
    return kind(str(text))


def checked_folder(text: str) -> FolderId:
    """A folder's id as it came from the network or a file."""
    if not _FOLDER.fullmatch(text):
        raise UserError(
            f"not a folder id: {text[:80]!r}\n  expected: 16 to 64 hexadecimal digits\n"
            "  to fix: use the same version of Millrace on both sides"
        )
    return FolderId(text)


def _task_values(which: WhichAttempt) -> tuple[int, int, int, int]:
    task, attempt = which.task, which.attempt
    number = _LATEST_ON_THE_WIRE if isinstance(attempt, Latest) else attempt
    return task.query_id, task.stage_id, task.map_task, number


def _which(values: Mapping[str, int]) -> WhichAttempt:
    task = MapTaskId(
        QueryId(values["query_id"]), StageId(values["stage_id"]), MapTask(values["map_task"])
    )
    number = values["attempt"]
    return WhichAttempt(task, LATEST if number == _LATEST_ON_THE_WIRE else Attempt(number))


def _range(entry: object) -> ByteRange:
    values = _numbers(_fields(entry, _RANGE_FIELDS, what="ticket"), what="ticket")
    return ByteRange(_which(values), ReducePartition(values["partition"]), values["start"])


def _numbers(document: Mapping[str, object], *, what: str) -> dict[str, int]:
    return {name: _number(value, name, what=what) for name, value in document.items()}


def _number(value: object, name: str, *, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ID_MAX:
        raise UserError(
            f"not a {what}: {name} is {str(value)[:80]!r}\n"
            "  to fix: give a whole number from 0 to 2**64 - 1"
        )
    return value


def _document(data: bytes, names: Sequence[str], *, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"not a {what}: {str(error)[:80]}\n"
            "  to fix: use the same version of Millrace on both sides"
        ) from error
    return _fields(document, names, what=what)


def _fields(document: object, names: Sequence[str], *, what: str) -> dict[str, Any]:
    if not isinstance(document, dict) or set(document) != set(names):
        raise UserError(
            f"not a {what}\n  expected: the fields {', '.join(names)}\n"
            "  to fix: use the same version of Millrace on both sides"
        )
    return document


def _provenance(entry: object) -> Mapping[str, Any]:
    inputs = entry.get("inputs", []) if isinstance(entry, dict) else None
    if not isinstance(inputs, list) or not all(
        isinstance(one, dict) and "path" in one for one in inputs
    ):
        raise UserError(
            "not a question for finished work: inputs without a path\n"
            "  to fix: use the same version of Millrace on both sides"
        )
    assert isinstance(entry, dict)
    return entry
