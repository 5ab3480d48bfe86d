"""The wire formats of providers behind one contract: requests as JSON, answers from JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from millrace.llm.anthropic_wire import AnthropicWire
from millrace.llm.model_questions import Answer, Question, Usage
from millrace.llm.models import Model
from millrace.llm.openai_wire import OpenAiWire

Json = dict[str, Any]


class Wire(Protocol):
    """How a provider is asked."""

    @property
    def asks_at(self) -> str:
        """The path of a question, behind the base URL."""

    @property
    def models_at(self) -> str:
        """The path of the list of models, which costs nothing."""

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of each request; `key` is the secret, if there is one."""

    def question(self, model: Model, question: Question) -> Json:
        """The body of a question."""

    def answer(self, body: Mapping[str, Any], question: Question) -> Answer:
        """The answer in a response; `ValueError` or `KeyError` if it has none."""

    def usage(self, body: Mapping[str, Any]) -> Usage:
        """What a response was charged for, also one without an answer."""

    def error(self, body: object) -> tuple[str, str]:
        """The code and the text of an error's response."""


_WIRES: Final[Mapping[str, Wire]] = {"openai": OpenAiWire(), "anthropic": AnthropicWire()}


def answer_without_text(wire: Wire, body: Mapping[str, Any]) -> Answer:
    """What is known of a response that has no answer: it was paid for all the same."""
    try:
        usage = wire.usage(body)
    except (AttributeError, TypeError, ValueError):
        usage = Usage()
    return Answer(text="", usage=usage, request_id=str(body.get("id") or ""))


def wire_of(model: Model) -> Wire:
    """The wire format of a model."""
    return _WIRES[model.provider]
