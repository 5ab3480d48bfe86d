"""Prices of models."""

from __future__ import annotations

import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.llm import PRICES_OF, Price, price_of


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


def test_a_users_price_goes_before_the_table() -> None:
    mine = Price(input=0.01)
    assert mr.llm.openai("gpt-4o", price=mine).price is mine
    with pytest.raises(UserError, match="price: input is -1"):
        Price(input=-1)
