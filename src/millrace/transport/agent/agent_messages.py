"""The messages between agents and their clients. Pure: values to bytes, and back.

Invariant: a message from the network holds the numbers it should, each in its range, or it is a
`UserError`. No text from the network becomes part of a path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from millrace.errors import UserError
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
from millrace.message_types import known
from millrace.storage import layout
from millrace.transport.flight.wire import WireMessage, from_json, wrong

PROTOCOL: Final = 1
FOLDER_HEADER: Final = "x-millrace-folder"

PING: Final = "ping"
RENEW: Final = "renew"
INDEX: Final = "index"
FIND: Final = "find"
KEEP: Final = "keep"

_LATEST_ON_THE_WIRE: Final = 0
_TICKET: Final = "a ticket"
_INDEX_REQUEST: Final = "a question for an index"
_SEARCH: Final = "a question for finished work"
_KEPT: Final = "a list of runs to keep"

_Id = Annotated[int, msgspec.Meta(ge=0)]
"""At most `ID_MAX`, which is beyond what the codec can check."""


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
class KeptRuns:
    """What a workspace still has, so that a host can remove the rest."""

    newest: int
    """Later runs may have begun since: they are left alone."""
    runs: frozenset[int]
    attempts: frozenset[str]
    """Attempts of other runs that a run relies on."""


class RemovedOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has removed from its folder."""

    attempts: int = 0
    bytes: int = 0


class AgentPong(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that answered a ping."""

    protocol: int
    folder: FolderId
    version: str
    instance: str


class _AttemptMessage(WireMessage, frozen=True):
    """The number of the attempt; 0 is the latest."""

    query_id: _Id
    stage_id: _Id
    map_task: _Id
    attempt: _Id

    def __post_init__(self) -> None:
        if max(self.query_id, self.stage_id, self.map_task, self.attempt) > ID_MAX:
            raise ValueError("a number above 2**64 - 1")

    def which(self) -> WhichAttempt:
        task = MapTaskId(QueryId(self.query_id), StageId(self.stage_id), MapTask(self.map_task))
        is_latest = self.attempt == _LATEST_ON_THE_WIRE
        return WhichAttempt(task, LATEST if is_latest else Attempt(self.attempt))


class _RangeMessage(_AttemptMessage, frozen=True):
    partition: _Id
    start: _Id

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.partition, self.start) > ID_MAX:
            raise ValueError("a number above 2**64 - 1")


class _TicketMessage(WireMessage, frozen=True):
    ranges: Annotated[list[_RangeMessage], msgspec.Meta(min_length=1)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1)]


class _MadeFrom(msgspec.Struct):
    """What a search looks at of each piece of work."""

    inputs: list[_InputPath] = []


class _InputPath(msgspec.Struct):
    path: Any


class _SearchMessage(WireMessage, frozen=True):
    made_from: list[dict[str, Any]]
    verify: bool


class _KeptMessage(WireMessage, frozen=True):
    newest: _Id
    runs: list[_Id]
    attempts: list[str]


def encode_kept(kept: KeptRuns) -> bytes:
    """Write what is to be kept."""
    return _KeptMessage(kept.newest, sorted(kept.runs), sorted(kept.attempts)).to_json()


def decode_kept(data: bytes) -> KeptRuns:
    """Read what is to be kept."""
    sent = from_json(data, _KeptMessage, _KEPT)
    return KeptRuns(
        newest=sent.newest, runs=frozenset(sent.runs), attempts=frozenset(sent.attempts)
    )


def encode_removed(removed: RemovedOutputs) -> bytes:
    """Write what was removed."""
    return msgspec.json.encode(removed)


def decode_removed(data: bytes) -> RemovedOutputs:
    """Read what was removed."""
    return from_json(data, RemovedOutputs, "what an agent removed")


def encode_ticket(ticket: Ticket) -> bytes:
    """Write a ticket."""
    ranges = [
        _RangeMessage(*_numbers(part.which), part.partition, part.start) for part in ticket.ranges
    ]
    return _TicketMessage(ranges, ticket.chunk_bytes).to_json()


def decode_ticket(data: bytes, *, chunk_bytes_max: int, ranges_max: int) -> Ticket:
    """Read a ticket; refuse bytes that are none."""
    sent = from_json(data, _TicketMessage, _TICKET)
    if len(sent.ranges) > ranges_max:
        raise wrong(_TICKET, f"{len(sent.ranges)} ranges, at most {ranges_max}")
    if sent.chunk_bytes > chunk_bytes_max:
        raise wrong(_TICKET, f"chunk_bytes is {sent.chunk_bytes}, at most {chunk_bytes_max}")
    ranges = (
        ByteRange(part.which(), ReducePartition(part.partition), part.start) for part in sent.ranges
    )
    return Ticket(tuple(ranges), sent.chunk_bytes)


def encode_which(which: WhichAttempt) -> bytes:
    """Write the question for an index."""
    return _AttemptMessage(*_numbers(which)).to_json()


def decode_which(data: bytes) -> WhichAttempt:
    """Read the question for an index."""
    return from_json(data, _AttemptMessage, _INDEX_REQUEST).which()


def encode_search(search: Search) -> bytes:
    """Write the question for finished work."""
    # Python's own JSON: a path need not be valid text.
    return json.dumps({"made_from": search.made_from, "verify": search.verify}).encode()


def decode_search(data: bytes) -> Search:
    """Read the question for finished work."""
    try:
        sent = msgspec.convert(json.loads(data), known(_SearchMessage))
        msgspec.convert(sent.made_from, known(list[_MadeFrom]))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wrong(_SEARCH, error) from error
    return Search(made_from=tuple(sent.made_from), verify=sent.verify)


def encode_pong(pong: AgentPong) -> bytes:
    """Write the answer to a ping."""
    return msgspec.json.encode(pong)


def decode_pong(data: bytes) -> AgentPong:
    """Read the answer to a ping."""
    pong = from_json(data, AgentPong, "a pong")
    if pong.protocol != PROTOCOL:
        raise UserError(
            f"the agent speaks protocol {pong.protocol}, this Millrace {PROTOCOL}\n"
            f"  found: an agent of Millrace {pong.version}\n"
            "  to fix: run the same version of Millrace on all hosts"
        )
    return pong


def checked_folder(text: str) -> FolderId:
    """A folder's id as it came from the network or a file."""
    if not layout.is_folder_id(text):
        raise wrong("a folder id", f"{text[:80]!r}, expected 16 to 64 hexadecimal digits")
    return FolderId(text)


def _numbers(which: WhichAttempt) -> tuple[int, int, int, int]:
    task, attempt = which.task, which.attempt
    number = _LATEST_ON_THE_WIRE if isinstance(attempt, Latest) else attempt
    return task.query_id, task.stage_id, task.map_task, number
