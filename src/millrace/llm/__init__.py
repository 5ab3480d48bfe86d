"""Models of providers, for `step.prompt` and `step.embed`: questions and embeddings over HTTP.

A model is a value: it holds no connection and no key. Workers read the key from their environment
when they call, and nothing writes it down.

Example:
    >>> llm = mr.llm.openai("gpt-5-mini", temperature=0)
    >>> llm.price.output  # dollars for a million tokens
    2.0
"""

from __future__ import annotations

from millrace.llm.models import Model, anthropic, openai
from millrace.llm.prices import PRICES_OF, Price, price_of

__all__ = ["PRICES_OF", "Model", "Price", "anthropic", "openai", "price_of"]
