"""The request of a follower, and the messages that it gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypedDict, Unpack

import msgspec
import pyarrow as pa

from millrace.durations import Duration, milliseconds
from millrace.errors import UserError
from millrace.journal.core.journal_names import Offset, under
from millrace.journal.core.number_ranges import Int64
from millrace.journal.core.values import Fetched
from millrace.keys.key_columns import as_names
from millrace.keys.key_ranges import WHOLE, KeyRange

From = int | Literal["start", "end"] | Mapping[str, int] | None
To = int | Literal["end"] | None
PRIORITY_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowRequest:
    """Which rows of which journals a follower wants."""

    prefix: str
    """A journal's name, or a prefix of names."""
    keys: tuple[str, ...] = ()
    """The columns whose hash `range` is about."""
    range: KeyRange = WHOLE
    key: pa.RecordBatch | None = None
    """One row: just the rows that have this key, instead of a range."""
    begins: Mapping[str, Int64] = field(default_factory=dict)
    """Where to begin in these journals."""
    others: Literal["start", "end"] = "start"
    """Where to begin in others that are there now; later ones are read from their start."""
    ends: Mapping[str, Int64] | None = None
    """Read just these journals, each up to its offset, and end."""
    until_end: bool = False
    """Read up to where committed rows end now, and end."""
    alone: bool = False
    """Just the journal whose name `prefix` is."""
    version: str = ""
    """Of the program that reads."""
    priorities: Mapping[str, Int64] = field(default_factory=dict)
    """Of the journals under these prefixes; the longest prefix counts. Others have 0."""
    delays_ms: Mapping[str, Int64] = field(default_factory=dict)
    """How long rows of journals under these prefixes wait after they were written."""

    def priority_of(self, journal: str) -> int:
        """The priority of a journal's rows."""
        return _of_longest(self.priorities, journal)

    def delay_ms_of(self, journal: str) -> int:
        """How long rows of a journal wait after they were written."""
        return _of_longest(self.delays_ms, journal)

    def resumed(self, at: Mapping[str, Int64], ends: Mapping[str, Int64] | None) -> FollowRequest:
        """The same request, from the current positions of a follower on."""
        return replace(self, begins=dict(at), others="start", ends=ends, until_end=False)


class FollowStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The follower is accepted: its first offsets, and its last ones if it has an end."""

    at: Mapping[str, Int64]
    ends: Mapping[str, Int64] | None


class FollowerBeat(msgspec.Struct, frozen=True, tag=True):
    """The positions of the follower, in journals in which it moved; no rows."""

    at: Mapping[str, Int64]


class AskAgain(msgspec.Struct, frozen=True, tag=True):
    """The time limit of this stream is over: the client sends its request again."""


class FollowEnded(msgspec.Struct, frozen=True, tag=True):
    """All requested rows were sent."""


Message = FollowStarted | Fetched | FollowerBeat | AskAgain | FollowEnded


class FollowRange(TypedDict, total=False):
    """Which rows a user asks for; all of them if nothing is said.

    Example:
        >>> for fetched in ws.journals.follow("orders", key={"cust_id": 1}, to_offset="end"):
        ...     print(fetched.rows()["amount"].to_pylist())
        [10, 30]
    """

    key: Mapping[str, Any] | None
    """Columns and values: just rows that have these."""
    keys: str | Sequence[str]
    """With `key_range`: just rows whose key columns have a hash in that range."""
    key_range: KeyRange
    """One of `millrace.keys.key_ranges.tile(n)`, say. Without `keys`, rows are spread by their
    rotated clock, as coordinated reads spread rows without a key."""
    priority: Mapping[str, int] | None
    """By prefix: rows of journals with a higher priority come first."""
    read_delay: Duration | Mapping[str, Duration]
    """How long rows wait after they were written; for all, or by prefix."""
    from_offset: From
    """An offset of a journal, {journal: offset, ...}, or "end". Default: the first there is."""
    to_offset: To
    """An offset of a journal at which to end, or "end": where committed rows end now."""
    version: str
    """Of the program that reads: followers of one version share reads."""


def follow_request(prefix: str, **which: Unpack[FollowRange]) -> FollowRequest:
    """Check the arguments of a user and make a request of them."""
    key, keys = which.get("key"), which.get("keys", ())
    key_range = which.get("key_range", WHOLE)
    from_offset, to_offset = which.get("from_offset"), which.get("to_offset")
    if key is not None and (keys or key_range != WHOLE):
        raise UserError(
            "a key and a range of keys were given\n  to fix: give key={column: value}, or keys= "
            "and key_range="
        )
    is_one = isinstance(from_offset, int) or isinstance(to_offset, int)
    return FollowRequest(
        prefix=prefix,
        keys=tuple(sorted(key)) if key else as_names(keys) if keys else (),
        range=key_range,
        key=None if key is None else _row(key),
        begins=_begins(prefix, from_offset),
        others="end" if from_offset == "end" else "start",
        ends={prefix: Offset(to_offset)} if isinstance(to_offset, int) else None,
        until_end=to_offset == "end",
        alone=is_one,
        version=which.get("version", ""),
        priorities=_priorities(which.get("priority")),
        delays_ms=_delays_ms(prefix, which.get("read_delay", 0)),
    )


def _of_longest(by_prefix: Mapping[str, int], journal: str) -> int:
    found = [prefix for prefix in by_prefix if under(prefix, journal)]
    return by_prefix[max(found, key=len)] if found else 0


def _priorities(given: Mapping[str, int] | None) -> Mapping[str, int]:
    for prefix, priority in (given or {}).items():
        if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
            raise UserError(
                f"priority {priority!r} of {prefix!r} is none\n"
                f"  to fix: give {{prefix: number}}, with numbers up to {PRIORITY_MAX}"
            )
    return dict(given or {})


def _delays_ms(prefix: str, given: Duration | Mapping[str, Duration]) -> Mapping[str, int]:
    if isinstance(given, Mapping):
        return {name: milliseconds(delay, "read_delay") for name, delay in given.items()}
    delay_ms = milliseconds(given, "read_delay")
    return {prefix: delay_ms} if delay_ms else {}


def _begins(prefix: str, from_offset: From) -> Mapping[str, int]:
    match from_offset:
        case None | "start" | "end":
            return {}
        case int():
            return {prefix: from_offset}
        case Mapping():
            return dict(from_offset)
    raise UserError(
        f"from_offset is {from_offset!r}\n"
        "  to fix: give an offset, {journal: offset, ...}, 'start' or 'end'"
    )


def _row(key: Mapping[str, Any]) -> pa.RecordBatch:
    """A key as one row; columns by name, so that followers share reads however it was written."""
    if not key:
        raise UserError("an empty key was given\n  to fix: give key={column: value}")
    try:
        columns = {str(name): pa.array([key[name]]) for name in sorted(key)}
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise UserError(
            f"key {dict(key)!r} has no Arrow type\n  found: {error}\n"
            "  to fix: give values of the types of the key columns"
        ) from error
    return pa.record_batch(columns)
