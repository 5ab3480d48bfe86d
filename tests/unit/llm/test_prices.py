"""Prices of models."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.llm import PRICES_OF, Price, price_of
from millrace.llm.wire_formats import wire_of


def test_a_model_of_a_day_has_the_price_of_its_name_unless_the_table_knows_the_day() -> None:
    assert price_of("gpt-4o-2024-08-06") == price_of("gpt-4o")
    assert price_of("gpt-4o-2024-05-13") != price_of("gpt-4o")
    assert price_of("claude-sonnet-4-5-20250929") == price_of("claude-sonnet-4-5")
    assert price_of("claude-opus-4-9") is None, "a later model is not an earlier one"
    assert PRICES_OF > "2026"


def test_cached_tokens_and_batches_cost_less() -> None:
    price = Price(input=2.0, cached=0.5, output=8.0)

    assert price.usd(tokens_in=1_000_000, tokens_cached=1_000_000, tokens_out=500_000) == 6.5
    assert price.usd(tokens_in=1_000_000, batch=True) == 1.0
    assert Price(input=2.0).usd(tokens_in=0, tokens_cached=1_000_000) == 2.0


def test_what_a_provider_puts_into_its_cache_costs_more_at_anthropic() -> None:
    llm = mr.llm.anthropic("claude-haiku-4-5")
    usage = {
        "input_tokens": 1_000,
        "cache_creation_input_tokens": 8_000,
        "cache_read_input_tokens": 2_000,
        "output_tokens": 100,
    }

    counts = asdict(wire_of(llm).usage({"usage": usage}))

    assert counts["tokens_in"] == 9_000
    assert llm.price is not None
    assert llm.price.usd(**counts) == pytest.approx((1_000 + 8_000 * 1.25 + 200 + 500) / 1e6)
    assert Price(input=1.0).usd(tokens_in=9_000, tokens_written=8_000) == 0.009


def test_a_users_price_goes_before_the_table() -> None:
    mine = Price(input=0.01)
    assert mr.llm.openai("gpt-4o", price=mine).price is mine
    with pytest.raises(UserError, match="price: input is -1"):
        Price(input=-1)
