"""The cost of a call: tokens and dollars, and where the provider said so. Pure.

Dollars are counted in billionths, as whole numbers: sums of many small prices stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

NANO_USD: Final = 1_000_000_000
"""Billionths of a dollar in a dollar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """The cost of one call, or of several: as a function says with `context.spend`."""

    tokens_in: int = 0
    """Tokens of the question that were not cached."""
    tokens_cached: int = 0
    """Tokens of the question that the provider had in its cache."""
    tokens_out: int = 0
    nano_usd: int = 0
    """Billionths of a dollar."""

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.tokens_in + self.tokens_cached + self.tokens_out

    @property
    def usd(self) -> float:
        """Dollars."""
        return self.nano_usd / NANO_USD

    def plus(self, other: Spend) -> Self:
        """The sum of both."""
        return type(self)(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_cached=self.tokens_cached + other.tokens_cached,
            tokens_out=self.tokens_out + other.tokens_out,
            nano_usd=self.nano_usd + other.nano_usd,
        )


NOTHING_SPENT: Final = Spend()


@dataclass(frozen=True, slots=True)
class Allowed:
    """How many calls and tokens per minute a provider said that it allows, and what is left."""

    rpm: float | None = None
    tpm: float | None = None
    calls_left: float | None = None
    """Calls that the provider would take now; None if it did not say."""
    tokens_left: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpend:
    """What one call of a function said about its cost."""

    spend: Spend = NOTHING_SPENT
    model: str = ""
    request_id: str = ""
    is_priced: bool = False
    """Whether the function gave the dollars itself; they come from the table of prices if not."""
    allowed: Allowed | None = None
    """What the provider said with the answer that it allows."""


NO_SPEND: Final = CallSpend()


@dataclass(slots=True)
class SpendNotes:
    """Gathers what the function says about its cost during one call."""

    noted: CallSpend = NO_SPEND

    def add(self, more: CallSpend) -> None:
        """Add a request of the call: a call may ask a provider several times."""
        known = self.noted
        self.noted = CallSpend(
            spend=known.spend.plus(more.spend),
            model=more.model or known.model,
            request_id=more.request_id or known.request_id,
            is_priced=known.is_priced or more.is_priced,
            allowed=more.allowed or known.allowed,
        )
