"""Anthropic's wire format: messages. Pure.

An answer with a schema is the input of a tool that the model has to call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from millrace.llm.model_questions import Answer, Image, Question, Usage
from millrace.llm.models import Model

Json = dict[str, Any]
VERSION: Final = "2023-06-01"
TOOL: Final = "answer"


class AnthropicWire:
    """Messages, as Anthropic speaks them."""

    asks_at = "/v1/messages"
    models_at = "/v1/models"

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of each request."""
        return {"anthropic-version": VERSION} | ({} if key is None else {"x-api-key": key})

    def question(self, model: Model, question: Question) -> Json:
        """The body of a message."""
        content: str | list[Json] = question.text
        if question.images:
            shown = [_image(image) for image in question.images]
            content = [*shown, {"type": "text", "text": question.text}]
        messages: list[Json] = [{"role": "user", "content": content}]
        if question.repair is not None:
            messages.append({"role": "assistant", "content": question.repair.answer})
            messages.append({"role": "user", "content": question.repair.request})
        body: Json = {"model": model.model, "messages": messages, **model.parameters}
        if question.system:
            body["system"] = question.system
        if question.schema is not None:
            tool = {
                "name": TOOL,
                "description": "Gives the answer.",
                "input_schema": question.schema,
            }
            body |= {"tools": [tool], "tool_choice": {"type": "tool", "name": TOOL}}
        return body

    def answer(self, body: Mapping[str, Any], question: Question) -> Answer:
        """The answer of a message."""
        blocks = body["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [block["input"] for block in blocks if block["type"] == "tool_use"]
        if question.schema is not None and calls:
            text = json.dumps(calls[0], ensure_ascii=False)
        ended = {"max_tokens": "length", "refusal": "refused"}.get(body.get("stop_reason") or "")
        return Answer(
            text=text,
            usage=self.usage(body),
            model=body.get("model") or "",
            request_id=body.get("id") or "",
            ended=ended or "",
        )

    def usage(self, body: Mapping[str, Any]) -> Usage:
        """What a response was charged for."""
        return _usage(body.get("usage") or {})

    def error(self, body: object) -> tuple[str, str]:
        """The code and the text of an error."""
        inner = body.get("error") if isinstance(body, Mapping) else None
        if not isinstance(inner, Mapping):
            return "", str(inner or "")
        return str(inner.get("type") or ""), str(inner.get("message") or "")


def _image(image: Image) -> Json:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": image.media_type, "data": image.base64}
    return {"type": "image", "source": source}


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Its `input_tokens` are without those of the cache."""
    written = int(usage.get("cache_creation_input_tokens") or 0)
    return Usage(
        tokens_in=int(usage.get("input_tokens") or 0) + written,
        tokens_cached=int(usage.get("cache_read_input_tokens") or 0),
        tokens_out=int(usage.get("output_tokens") or 0),
        tokens_written=written,
    )
