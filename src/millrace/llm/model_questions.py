"""What a model is asked, and what it answered, apart from any provider's wire format. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.llm.models import Model


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a question: bytes with their type, or a URL that the provider fetches."""

    url: str = ""
    media_type: str = ""
    base64: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that did not have the schema, and why."""

    answer: str
    complaint: str

    @property
    def request(self) -> str:
        """What the model is asked behind its answer."""
        return f"That does not fit: {self.complaint}. Answer again, with JSON of the schema alone."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question to a model."""

    text: str
    system: str = ""
    images: tuple[Image, ...] = ()
    schema: Mapping[str, Any] | None = None
    """The JSON Schema that the answer has to have."""
    is_strict: bool = False
    """Whether a provider can promise the schema."""
    repair: Repair | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a provider charged for."""

    tokens_in: int = 0
    """Tokens of the question that it did not have in its cache."""
    tokens_cached: int = 0
    tokens_out: int = 0
    tokens_written: int = 0
    """Those of `tokens_in` that it put into its cache, which may cost more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a model."""

    text: str
    usage: Usage
    model: str = ""
    """As the provider calls it."""
    request_id: str = ""
    ended: str = ""
    """Why it ended, if not at its natural end: "length" or "refused"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The embeddings of some texts, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage
    model: str = ""
    request_id: str = ""


def request_key(model: Model, path: str, body: Mapping[str, Any]) -> str:
    """The name of a request by everything in it that decides the answer, and the wire format.

    Also by the order of a schema's fields: a model writes them in it, each with those before in
    view. Parameters have no order.
    """
    parameters = {name: body[name] for name in sorted(model.parameters)}
    rest = {name: value for name, value in body.items() if name not in parameters}
    content = json.dumps([model.provider, path, parameters, rest], ensure_ascii=False)
    return hashlib.blake2b(content.encode(), digest_size=20).hexdigest()
