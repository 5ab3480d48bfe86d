"""The record of expensive calls: written before a call, settled by the committed offset. Pure.

Each unit of an expensive hop has a journal of these rows; each transaction of the unit appends one.
A row says for which of the unit's rows calls are under way or about to be made: `first` to `next`,
without those whose results are `published` already. Behind a dead worker these calls are in doubt.
Each row carries the totals so far, so readers need only the last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.pipeline.paid.spend import Spend


class CallRecordKind(StrEnum):
    """What a row of the record says."""

    INTENT = "intent"
    """The calls for these rows are about to be made, or under way, or their results wait."""
    RETRY = "retry"
    """The same; in records of versions before calls slid."""
    SETTLED = "settled"
    """No call is in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the calls of one unit, over all runs."""

    calls: int = 0
    """Calls that were made, or are about to be made."""
    in_doubt: int = 0
    """Calls that a dead worker may have made, and that were made again or skipped."""
    errors: int = 0
    """Calls that raised."""
    skipped: int = 0
    """Rows left out, because they raised or were in doubt."""
    dead_letters: int = 0
    """Rows put into the dead-letter journal."""
    refused: int = 0
    """Calls that a busy provider refused; they are no calls of `calls`."""
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    nano_usd: int = 0

    def plus(self, **more: int) -> Totals:
        """The totals with these counts added."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})

    def spent(self, spend: Spend) -> Totals:
        """The totals with the cost of a call."""
        return self.plus(
            tokens_in=spend.tokens_in,
            tokens_cached=spend.tokens_cached,
            tokens_out=spend.tokens_out,
            nano_usd=spend.nano_usd,
        )

    @property
    def spend(self) -> Spend:
        """The cost of all calls."""
        return Spend(
            tokens_in=self.tokens_in,
            tokens_cached=self.tokens_cached,
            tokens_out=self.tokens_out,
            nano_usd=self.nano_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A unit's part of the budget of its step: what it spent, and what it has reserved."""

    calls: int = 0
    tokens: int = 0
    nano_usd: int = 0

    def plus(self, other: Held) -> Held:
        """The sum of both."""
        return Held(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            nano_usd=self.nano_usd + other.nano_usd,
        )

    def minus(self, other: Held) -> Held:
        """The difference."""
        return Held(
            calls=self.calls - other.calls,
            tokens=self.tokens - other.tokens,
            nano_usd=self.nano_usd - other.nano_usd,
        )

    def times(self, count: int) -> Held:
        """As much, several times."""
        return Held(
            calls=self.calls * count, tokens=self.tokens * count, nano_usd=self.nano_usd * count
        )


Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets, in order and apart: the first one, and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One row of the record."""

    at_us: int
    epoch: int
    """The epoch of the lease under which the calls are made."""
    kind: CallRecordKind
    first: int
    next: int
    calls: int
    """The number of calls that are recorded and have no outcome."""
    outcomes: int = 0
    """How many outcomes of this epoch are counted in the totals."""
    published: Ranges = ()
    """Rows behind `first` whose results are published already."""
    totals: Totals = field(default_factory=Totals)
    held: Held = field(default_factory=Held)


_PLAIN: Final = ("at_us", "epoch", "kind", "first", "next", "calls", "outcomes")
_TOTALS: Final = tuple(each.name for each in fields(Totals))
_OLD_TOTALS: Final = _TOTALS[:5]
_HELD: Final = tuple(each.name for each in fields(Held))


def _number(name: str) -> pa.Field:
    return pa.field(name, pa.string() if name == "kind" else pa.int64(), nullable=False)


SCHEMA: Final = pa.schema(
    [
        *map(_number, _PLAIN),
        pa.field("published", pa.binary(), nullable=False),
        *(_number(f"total_{name}") for name in _TOTALS),
        *(_number(f"held_{name}") for name in _HELD),
    ]
)
OLD_SCHEMA: Final = pa.schema(
    [*map(_number, _PLAIN[:6]), *(_number(f"total_{name}") for name in _OLD_TOTALS)]
)
"""The columns of records before calls slid and dollars were counted."""

BUDGET_SCHEMA: Final = pa.schema(
    [
        _number("at_us"),
        *map(_number, _HELD),
        *(_number(f"total_{name}") for name in _HELD),
    ]
)
"""Shares of all workers of a step. The expected offset keeps two from taking the same one."""


def to_rows(records: Sequence[CallRecord]) -> pa.RecordBatch:
    """Records as rows of their journal."""
    rows = []
    for record in records:
        row: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
        row["kind"] = record.kind.value
        row["published"] = np.array(record.published, np.int64).tobytes()
        row |= {f"total_{name}": getattr(record.totals, name) for name in _TOTALS}
        row |= {f"held_{name}": getattr(record.held, name) for name in _HELD}
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_rows(rows: pa.Table) -> list[CallRecord]:
    """Rows of a journal as records, also of the journals of earlier versions."""
    return [from_row(row) for row in rows.to_pylist()]


def from_row(row: dict[str, Any]) -> CallRecord:
    """A row of a journal as a record."""
    ends = np.frombuffer(row.get("published", b""), np.int64).reshape(-1, 2).tolist()
    return CallRecord(
        at_us=row["at_us"],
        epoch=row["epoch"],
        kind=CallRecordKind(row["kind"]),
        first=row["first"],
        next=row["next"],
        calls=row["calls"],
        outcomes=row.get("outcomes", 0),
        published=tuple((begin, end) for begin, end in ends),
        totals=Totals(**{name: row.get(f"total_{name}", 0) for name in _TOTALS}),
        held=Held(**{name: row.get(f"held_{name}", 0) for name in _HELD}),
    )


def in_doubt(last: CallRecord | None, committed: int | None) -> CallRecord | None:
    """The record whose calls are in doubt, if the last one lies beyond the committed offset."""
    if last is None or last.kind is CallRecordKind.SETTLED or last.first < (committed or 0):
        return None
    return last
