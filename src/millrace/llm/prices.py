"""What tokens cost: a table with its date, which a user's own price goes before. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace.errors import UserError

PRICES_OF: Final = "2026-08-08"
"""The day of the table. Providers change prices: give `price=` where yours are others."""

_MILLION: Final = 1_000_000
_DAY: Final = re.compile(r"-(\d{4}-\d\d-\d\d|\d{8}|latest)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for a million tokens of a model.

    Example:
        >>> mr.llm.Price(input=2.0, output=8.0).usd(tokens_in=1000, tokens_out=500)
        0.006
    """

    input: float
    """Tokens of the question that the provider did not have in its cache."""
    output: float = 0.0
    """Tokens of the answer, those of its reasoning included."""
    cached: float | None = None
    """Tokens of the question that the provider had in its cache; as `input` if not given."""
    written: float | None = None
    """Tokens of the question that the provider put into its cache; as `input` if not given."""
    batch: float = 0.5
    """The part of the price that a call costs in a batch."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "written", "batch"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(
                    f"price: {name} is {value!r}\n  to fix: give dollars for a million tokens"
                )

    def usd(
        self,
        *,
        tokens_in: int,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        tokens_written: int = 0,
        batch: bool = False,
    ) -> float:
        """What a call costs. `tokens_in` are those of the question that were not cached.

        `tokens_written` are those of them that the provider put into its cache.

        Example:
            >>> mr.llm.Price(input=2.0, cached=0.5).usd(tokens_in=0, tokens_cached=1000)
            0.0005
        """
        cached = self.input if self.cached is None else self.cached
        more = 0.0 if self.written is None else self.written - self.input
        dollars = tokens_in * self.input + tokens_cached * cached + tokens_out * self.output
        dollars += tokens_written * more
        return dollars * (self.batch if batch else 1.0) / _MILLION


_WRITTEN_BY_CLAUDE: Final = 1.25
"""What a token costs that Anthropic puts into its cache for five minutes, by that of another."""

_PRICES: Final[dict[str, tuple[float, float | None, float]]] = {
    # Input, cached input, output.
    "gpt-5.6": (5.0, 0.5, 30.0),
    "gpt-5.6-sol": (5.0, 0.5, 30.0),
    "gpt-5.6-terra": (2.0, 0.2, 12.0),
    "gpt-5.6-luna": (0.2, 0.02, 1.2),
    "gpt-5.5": (5.0, 0.5, 30.0),
    "gpt-5.4": (2.5, 0.25, 15.0),
    "gpt-5.4-mini": (0.75, 0.075, 4.5),
    "gpt-5.4-nano": (0.2, 0.02, 1.25),
    "gpt-5.2": (1.75, 0.175, 14.0),
    "gpt-5.1": (1.25, 0.125, 10.0),
    "gpt-5": (1.25, 0.125, 10.0),
    "gpt-5-mini": (0.25, 0.025, 2.0),
    "gpt-5-nano": (0.05, 0.005, 0.4),
    "gpt-4.1": (2.0, 0.5, 8.0),
    "gpt-4.1-mini": (0.4, 0.1, 1.6),
    "gpt-4.1-nano": (0.1, 0.025, 0.4),
    "gpt-4o": (2.5, 1.25, 10.0),
    "gpt-4o-2024-05-13": (5.0, None, 15.0),
    "gpt-4o-mini": (0.15, 0.075, 0.6),
    "o3": (2.0, 0.5, 8.0),
    "o3-mini": (1.1, 0.55, 4.4),
    "o4-mini": (1.1, 0.275, 4.4),
    "text-embedding-3-small": (0.02, None, 0.0),
    "text-embedding-3-large": (0.13, None, 0.0),
    "text-embedding-ada-002": (0.1, None, 0.0),
    "claude-opus-5": (5.0, 0.5, 25.0),
    "claude-opus-4-8": (5.0, 0.5, 25.0),
    "claude-opus-4-7": (5.0, 0.5, 25.0),
    "claude-opus-4-6": (5.0, 0.5, 25.0),
    "claude-opus-4-5": (5.0, 0.5, 25.0),
    "claude-opus-4-1": (15.0, 1.5, 75.0),
    "claude-sonnet-5": (2.0, 0.2, 10.0),
    "claude-sonnet-4-6": (3.0, 0.3, 15.0),
    "claude-sonnet-4-5": (3.0, 0.3, 15.0),
    "claude-haiku-4-5": (1.0, 0.1, 5.0),
}


def price_of(model: str) -> Price | None:
    """The price of a model by the table; None if it is not there.

    A model of a day, as `gpt-4o-mini-2024-07-18`, has the price of its name without the day, unless
    the table has one for that day.

    Example:
        >>> mr.llm.price_of("gpt-4o-mini-2024-07-18").output
        0.6
        >>> mr.llm.price_of("my-own-model") is None
        True
    """
    row = _PRICES.get(model) or _PRICES.get(_DAY.sub("", model))
    if row is None:
        return None
    written = _WRITTEN_BY_CLAUDE * row[0] if model.startswith("claude-") else None
    return Price(input=row[0], cached=row[1], output=row[2], written=written)
