"""How fast the calls of a step come, over all workers: blocks of calls, one behind the other. Pure.

A row of the pace journal reserves a block: some calls, and the time that they and their tokens
take at the limits. It begins where the last one ends, and is appended only behind that: no two
workers have the same time. A worker spreads its calls from the end of its last block to the end of
this one, so that all workers call evenly. Tokens that calls took beside those that were reserved
are added to the next block. What a provider says that it allows, and that it is busy, is a part of
the next row: so all workers learn it.

A step without limits is free: calls pass at once, until the provider is busy or says that little is
left of what it allows. Then they are paced by that.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from millrace.pipeline.paid.limits_and_budget import Limits
from millrace.pipeline.paid.spend import Allowed

SHARE: Final = 0.98
"""The part of a limit that is used: clocks and ways of counting differ."""
BLOCK_US: Final = 500_000
"""About how much time a block takes."""
_MINUTE_US: Final = 60_000_000
_SLOWER: Final = 0.9
_SLOWER_EACH_US: Final = 1_000_000
_FASTER_EACH_S: Final = 0.005
_SLOWEST: Final = 0.05
_FIRST: Final = 0.25
_ASK_US: Final = 50_000
_LATER: Final = 0.95
_LITTLE: Final = 0.5
"""With less than this part of its limits left at a provider, calls keep to these."""
_KEPT_US: Final = 2_000_000
"""As much as comes in this time is left at a provider, if it lets so much gather."""
_BUSY: Final = 0.2
"""With such a part of its last calls refused a free worker takes the provider for busy."""
_GAP_US: Final = 100_000
"""Between calls of a free worker behind a refusal; twice as long after each further one."""
_GAP_US_MAX: Final = 2_000_000
_RECENT_US: Final = 60_000_000
"""For so long a free worker keeps to the limits that another one has found."""
_TOKENS_GUESSED: Final = 1000.0
"""Tokens that a call is thought to take before any has ended."""

PACE_SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("calls", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("slot_us", pa.int64(), nullable=False),
        pa.field("rpm", pa.float64()),
        pa.field("tpm", pa.float64()),
        pa.field("factor", pa.float64(), nullable=False),
        pa.field("slowed_us", pa.int64(), nullable=False),
    ]
)
"""`slot_us` is where the next block begins; `rpm` and `tpm` are what the provider said it allows;
`factor` is below one after refusals, the last of which was at `slowed_us`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRow:
    """The last row of a pace journal."""

    at_us: int = 0
    calls: int = 0
    tokens: int = 0
    slot_us: int = 0
    rpm: float | None = None
    tpm: float | None = None
    factor: float = 1.0
    slowed_us: int = 0


@dataclass(slots=True)
class Permits:
    """The calls that one worker may make, and when."""

    limits: Limits | None = None
    dues: deque[int] = field(default_factory=deque)
    last_end_us: int = 0
    tokens_each: float = 0.0
    """Tokens of a call, on average; as others found, or a guess, until the first one ended."""
    has_ended: bool = False
    tokens_more: float = 0.0
    """Tokens that calls took beside those that were reserved for them."""
    refused_us: int = 0
    hold_us: int = 0
    """Calls are held until this time, since the provider is busy."""
    allowed: Allowed | None = None
    most_left: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """The most calls and tokens that the provider has said are left."""
    is_paced: bool = False
    """Whether a free worker has begun to keep to what the provider allows."""
    refused_share: float = 0.0
    """The part of its last calls that was refused; a call counts less the longer it is ago."""
    gap_us: float = 0.0
    """How far apart the calls of a free worker are; a little less after each answer."""
    next_us: int = 0
    """When the next of them may come."""
    slowed_us: int = -_SLOWER_EACH_US
    """When they were last put further apart."""
    told_us: int = 0
    """The refusal that a free worker has told the others of."""

    @property
    def own(self) -> Allowed:
        """The limits of the step."""
        return Allowed() if self.limits is None else Allowed(self.limits.rpm, self.limits.tpm)

    @property
    def is_free(self) -> bool:
        """Whether calls pass at once."""
        return not (self.is_paced or self.own.rpm or self.own.tpm)

    def take(self, now_us: int) -> int | None:
        """Take the right to make a call; how long until one may be asked for again, if not now.

        None: a call may be made.
        """
        if self.is_free:
            held_us = max(self.hold_us, self.next_us) - now_us
            if held_us > 0:
                return min(held_us, _ASK_US)
            self.next_us = now_us + round(self.gap_us)
            return None
        if not self.dues:
            return _ASK_US
        wait_us = max(self.dues[0], self.hold_us) - now_us
        if wait_us > 0:
            return min(wait_us, _ASK_US)
        self.dues.popleft()
        return None

    def needs_more(self, now_us: int) -> bool:
        """Whether it is time for the next row: a block, or news for other free workers."""
        if self.is_free:
            return self.refused_us > self.told_us
        return self.last_end_us - now_us < BLOCK_US

    def on_look(self, last: PaceRow, now_us: int) -> None:
        """What other workers found, as a free one learns it."""
        if (last.rpm or last.tpm) and now_us - last.at_us < _RECENT_US:
            self.is_paced = True
        else:
            self.hold_us = max(self.hold_us, last.slot_us)

    def on_called(self, tokens: int, now_us: int, *, allowed: Allowed | None) -> None:
        """A call ended, that took so many tokens."""
        self.gap_us *= _LATER
        self.refused_share *= _LATER
        self.tokens_more += tokens - self.tokens_each
        known = self.tokens_each if self.has_ended else tokens
        self.tokens_each, self.has_ended = _LATER * known + (1 - _LATER) * tokens, True
        self.on_allowed(allowed, now_us)

    def on_allowed(self, allowed: Allowed | None, now_us: int) -> None:
        """What the provider said that it allows, if it did."""
        if allowed is None:
            return
        pairs = ((allowed.rpm, allowed.calls_left), (allowed.tpm, allowed.tokens_left))
        if self.is_free:
            self.is_paced = any(
                limit and (left is None or left < _LITTLE * limit) for limit, left in pairs
            )
            self.tokens_more = 0.0
        if self.is_free:
            return
        self._adapt(allowed, now_us)
        for place, (limit, left) in enumerate(pairs):
            if limit and left is not None:
                self.most_left[place] = max(self.most_left[place], left)
                kept = min(_KEPT_US * limit / _MINUTE_US, _LITTLE * self.most_left[place])
                wait_us = round((kept - left) * _MINUTE_US / limit)
                self.hold_us = max(self.hold_us, now_us + wait_us)

    def _adapt(self, allowed: Allowed, now_us: int) -> None:
        """Keep to what the provider says now; calls that are reserved already come later then."""
        before = self.allowed or self.own
        pairs = ((before.rpm, allowed.rpm), (before.tpm, allowed.tpm))
        slower = max((old / new for old, new in pairs if old and new), default=1.0)
        if slower > 1:
            # Those that come behind the own blocks then are given up: others follow there.
            later = (now_us + round((due - now_us) * slower) for due in self.dues)
            self.dues = deque(due for due in later if due <= max(now_us, self.last_end_us))
        self.allowed = allowed

    def on_refused(self, now_us: int, wait_us: int) -> None:
        """The provider is busy, and said how long."""
        self.tokens_more -= self.tokens_each
        self.refused_share = _LATER * self.refused_share + (1 - _LATER)
        if self.is_free and self.refused_share < _BUSY:
            return  # One of many calls: it waits, and the others go on.
        if now_us - self.slowed_us >= _SLOWER_EACH_US:
            self.gap_us = min(_GAP_US_MAX, max(_GAP_US, 2 * self.gap_us))
            self.slowed_us = now_us
        self.refused_us = now_us
        self.hold_us = max(self.hold_us, now_us + wait_us)

    def next_row(self, last: PaceRow, now_us: int) -> PaceRow:
        """The row that reserves the next block."""
        factor, slowed = last.factor, last.slowed_us
        if self.refused_us > slowed + _SLOWER_EACH_US:
            factor, slowed = max(_SLOWEST, factor * _SLOWER), now_us
        else:
            passed_s = max(0, now_us - max(last.at_us, slowed)) / 1_000_000
            factor = min(1.0, factor + _FASTER_EACH_S * passed_s)
        known = replace(
            last,
            rpm=(self.allowed and self.allowed.rpm) or last.rpm,
            tpm=(self.allowed and self.allowed.tpm) or last.tpm,
            factor=factor,
            slowed_us=slowed,
        )
        if self.is_free:
            slot_us = max(last.slot_us, self.hold_us)
            return replace(known, at_us=max(now_us, last.at_us), calls=0, tokens=0, slot_us=slot_us)
        # The first calls of all come slowly: their answers may say what the provider allows.
        used = factor if self.has_ended or last.calls else factor * _FIRST
        call_us = _each_us(_least(self.own.rpm, known.rpm), used)
        token_us = _each_us(_least(self.own.tpm, known.tpm), used)
        if not self.has_ended and not self.tokens_each:
            is_known = last.calls > 0 and last.tokens > 0
            self.tokens_each = last.tokens / last.calls if is_known else _TOKENS_GUESSED
        each_us = max(call_us, token_us * self.tokens_each)
        calls = max(1, math.floor(BLOCK_US / each_us)) if each_us else 1
        tokens = self.tokens_each * calls + self.tokens_more
        span_us = max(call_us * calls, token_us * max(0.0, tokens))
        begin_us = max(now_us, last.slot_us, self.hold_us)
        return replace(
            known,
            at_us=max(now_us, last.at_us),
            calls=calls,
            tokens=max(0, round(tokens)),
            slot_us=begin_us + round(span_us),
        )

    def on_reserved(self, last: PaceRow, row: PaceRow, now_us: int) -> None:
        """The row is appended behind the last one: its block is this worker's."""
        self.told_us = self.refused_us
        if not row.calls:
            return
        begin_us = max(now_us, last.slot_us, self.hold_us)
        since_us = min(begin_us, max(now_us, self.last_end_us))
        each_us = (row.slot_us - since_us) / row.calls
        self.dues.extend(since_us + round(number * each_us) for number in range(row.calls))
        self.last_end_us = row.slot_us
        self.tokens_more = min(0.0, self.tokens_more + self.tokens_each * row.calls - row.tokens)


def to_rows(row: PaceRow) -> pa.RecordBatch:
    """A row for its journal."""
    return pa.RecordBatch.from_pylist(
        [{name: getattr(row, name) for name in PACE_SCHEMA.names}], PACE_SCHEMA
    )


def from_row(row: dict[str, float]) -> PaceRow:
    """A row of the journal."""
    return PaceRow(**{name: row[name] for name in PACE_SCHEMA.names})  # type: ignore[arg-type]


def _least(own: float | None, said: float | None) -> float | None:
    known = [limit for limit in (own, said) if limit]
    return min(known) if known else None


def _each_us(limit: float | None, factor: float) -> float:
    """How long one of so many a minute takes; nothing without a limit."""
    return 0.0 if limit is None else _MINUTE_US / (limit * SHARE * factor)
