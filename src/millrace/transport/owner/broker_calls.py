"""Every call to a broker: what it takes, what it answers, and whether it may be asked again. Pure.

A call may be asked again when asking twice does what asking once does, so that a lost answer is
no more than a wait. The others are tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace.journal.core.values import (
    Adopt,
    Anything,
    Append,
    Appended,
    Commit,
    FileRange,
    JournalInfo,
    Lease,
    MovedJournals,
    OpenIn,
    Position,
    ProducerProgress,
    Publish,
    Published,
    SegmentFile,
    Truncated,
    Watched,
)
from millrace.transport.owner.fetched_rows import FETCHED, FETCHED_MANY
from millrace.transport.owner.wire_shapes import (
    ARRAY,
    CLOCK,
    EXPECTED,
    FLAG,
    NOTHING,
    NUMBER,
    ROWS,
    SCHEMA,
    SPAN,
    TEXT,
    WHOLE,
    WireShape,
    either,
    many,
    maybe,
    one_of,
    pair,
    record,
    table,
    texts_or_text,
)

Again = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCall:
    """One call of the contract."""

    takes: Mapping[str, WireShape]
    answers: WireShape
    again: Again
    writes: bool
    """Whether it may change something."""


def _always(_: Mapping[str, Any]) -> bool:
    return True


def _never(_: Mapping[str, Any]) -> bool:
    return False


def _numbered(args: Mapping[str, Any]) -> bool:
    return args["producer"] is not None and args["sequence"] is not None


def _numbered_request(args: Mapping[str, Any]) -> bool:
    request: Publish = args["request"]
    return request.producer is not None and request.sequence is not None


def _compared(args: Mapping[str, Any]) -> bool:
    return not isinstance(args["expected"], Anything)


def _reads(answers: WireShape, **takes: WireShape) -> BrokerCall:
    return BrokerCall(takes=takes, answers=answers, again=_always, writes=False)


def _writes(answers: WireShape, again: Again, **takes: WireShape) -> BrokerCall:
    return BrokerCall(takes=takes, answers=answers, again=again, writes=True)


_INFO: Final = record(
    JournalInfo,
    {"id": WHOLE, "name": TEXT, "schema": SCHEMA, "labels": table(TEXT), "created_at_ms": WHOLE},
)
_APPENDED: Final = record(
    Appended, {"journal": TEXT, "first_offset": WHOLE, "rows": WHOLE, "next_offset": WHOLE}
)
_PUBLISHED: Final = record(
    Published,
    {"producer": WHOLE, "clock": CLOCK, "appended": table(_APPENDED), "repeated": FLAG},
)
_TRUNCATED: Final = record(Truncated, {"removed": WHOLE, "start_offset": WHOLE})
_POSITION: Final = record(
    Position,
    {
        "group": TEXT,
        "journal": TEXT,
        "start": WHOLE,
        "end": WHOLE,
        "committed": maybe(WHOLE),
        "backlog": WHOLE,
    },
)
_LEASE: Final = record(
    Lease, {"name": TEXT, "epoch": WHOLE, "holder": TEXT, "expires_at_ms": WHOLE}
)
_RANGE: Final = record(
    FileRange, {"position": WHOLE, "bytes": WHOLE, "rows": WHOLE, "checksum": TEXT}
)
FILE: Final = record(
    SegmentFile, {"path": TEXT, "schema": SCHEMA, "bytes": WHOLE, "ranges": many(_RANGE)}
)
UPLOAD: Final = pair(FILE, TEXT)
"""A file that is about to be sent, and the XXH3-64 of all of its bytes."""
_PART: Final = either(
    {
        Append: record(
            Append,
            {
                "journal": TEXT,
                "rows": ROWS,
                "keys": maybe(ARRAY),
                "timestamps": maybe(ARRAY),
                "expected": maybe(WHOLE),
            },
        ),
        Adopt: record(Adopt, {"journal": TEXT, "files": many(FILE)}),
    }
)
_COMMIT: Final = record(
    Commit,
    {"group": TEXT, "journal": TEXT, "offset": WHOLE, "expected": EXPECTED, "id": maybe(WHOLE)},
)
_PUBLISH: Final = record(
    Publish,
    {
        "parts": many(_PART),
        "commits": many(_COMMIT),
        "lease": maybe(_LEASE),
        "producer": maybe(WHOLE),
        "sequence": maybe(WHOLE),
    },
)
_WATCHED: Final = record(Watched, {"version": WHOLE, "journals": many(_INFO)})
_MOVED: Final = record(MovedJournals, {"version": WHOLE, "journals": maybe(many(WHOLE))})
_OPEN_IN: Final = record(
    OpenIn,
    {"journal": TEXT, "id": WHOLE, "begin": WHOLE, "highest": CLOCK, "last_commit": CLOCK},
)
_STANDING: Final = record(ProducerProgress, {"clock": CLOCK, "open": many(_OPEN_IN)})
_ISOLATION: Final = one_of("committed", "raw")
_LABELS: Final = maybe(table(texts_or_text()))
_LIMITS: Final = {"rows_max": maybe(SPAN), "bytes_max": maybe(SPAN), "isolation": _ISOLATION}
_OF_GROUP: Final = {"group": TEXT, "name": TEXT}

CALLS: Final[Mapping[str, BrokerCall]] = {
    "create": _writes(_INFO, _always, name=TEXT, schema=SCHEMA, labels=maybe(table(TEXT))),
    "create_many": _writes(
        many(_INFO), _always, names=many(TEXT), schema=SCHEMA, labels=many(table(TEXT))
    ),
    "get": _reads(_INFO, name=TEXT),
    "list": _reads(many(_INFO), prefix=TEXT, labels=_LABELS),
    "watch": _reads(_WATCHED, seen=WHOLE, prefix=TEXT, labels=_LABELS, timeout_s=NUMBER),
    "wait_for_rows": _reads(FLAG, after=table(WHOLE), timeout_s=NUMBER),
    "moved": _reads(_MOVED, since=WHOLE, timeout_s=NUMBER),
    "delete": _writes(NOTHING, _never, name=TEXT),
    "producer_id": _writes(WHOLE, _always, name=TEXT),
    "standing": _reads(_STANDING, producer=WHOLE),
    "append": _writes(
        _APPENDED,
        _numbered,
        name=TEXT,
        rows=ROWS,
        keys=maybe(ARRAY),
        timestamps=maybe(ARRAY),
        expected=maybe(WHOLE),
        producer=maybe(WHOLE),
        sequence=maybe(WHOLE),
    ),
    "append_stamped": _writes(_APPENDED, _always, name=TEXT, rows=ROWS, lease=maybe(_LEASE)),
    "publish": _writes(_PUBLISHED, _numbered_request, request=_PUBLISH),
    "adopt": _writes(_PUBLISHED, _never, files=table(many(FILE)), lease=maybe(_LEASE)),
    "adoption_folder": _reads(TEXT),
    "read": _reads(FETCHED, name=TEXT, offset=WHOLE, **_LIMITS),
    "read_many": _reads(
        FETCHED_MANY,
        offsets=table(WHOLE),
        **_LIMITS,
        bytes_each_max=maybe(SPAN),
        missing=one_of("raise", "tell"),
    ),
    "start_offset": _reads(WHOLE, name=TEXT),
    "start_offsets": _reads(table(WHOLE), names=many(TEXT)),
    "end_offset": _reads(WHOLE, name=TEXT, isolation=_ISOLATION),
    "commit": _writes(NOTHING, _compared, **_OF_GROUP, offset=WHOLE, expected=EXPECTED),
    "committed": _reads(maybe(WHOLE), **_OF_GROUP),
    "min_committed": _reads(maybe(WHOLE), name=TEXT),
    "backlog": _reads(WHOLE, **_OF_GROUP),
    "positions": _reads(many(_POSITION), wanted=many(pair(TEXT, TEXT))),
    "truncate_before": _writes(_TRUNCATED, _always, name=TEXT, offset=WHOLE, force=FLAG),
    "truncate_committed": _writes(_TRUNCATED, _always, name=TEXT),
    "acquire": _writes(_LEASE, _always, name=TEXT, holder=TEXT, lease_ms=maybe(SPAN)),
    "renew": _writes(_LEASE, _always, lease=_LEASE, lease_ms=maybe(SPAN)),
    "release": _writes(NOTHING, _always, lease=_LEASE),
    "fence": _writes(WHOLE, _always, name=TEXT),
    "leases": _reads(many(_LEASE), prefix=TEXT),
    "tidy": _writes(NOTHING, _always),
}
"""By name. `transaction` is made of `publish`, `store_file` is a stream, `close` goes nowhere."""
