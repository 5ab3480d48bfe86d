"""OpenAI's wire format: chat completions and embeddings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.llm.model_questions import Answer, Image, Question, Usage, Vectors
from millrace.llm.models import Model

Json = dict[str, Any]
SCHEMA_NAME: Final = "answer"


class OpenAiWire:
    """Chat completions, as OpenAI and servers like it speak them."""

    asks_at = "/chat/completions"
    embeds_at = "/embeddings"
    models_at = "/models"

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers of each request."""
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def question(self, model: Model, question: Question) -> Json:
        """The body of a chat completion."""
        messages: list[Json] = []
        if question.system:
            messages.append({"role": "system", "content": question.system})
        content: str | list[Json] = question.text
        if question.images:
            shown = [_image(image) for image in question.images]
            content = [{"type": "text", "text": question.text}, *shown]
        messages.append({"role": "user", "content": content})
        if question.repair is not None:
            messages.append({"role": "assistant", "content": question.repair.answer})
            messages.append({"role": "user", "content": question.repair.request})
        body: Json = {"model": model.model, "messages": messages, **model.parameters}
        if question.schema is not None:
            schema = {
                "name": SCHEMA_NAME,
                "schema": question.schema,
                "strict": question.is_strict,
            }
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def answer(self, body: Mapping[str, Any], question: Question) -> Answer:
        """The answer of a chat completion."""
        del question
        choice = body["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        refusal = message.get("refusal")
        ended = "length" if finish == "length" else ""
        return Answer(
            text=refusal or message.get("content") or "",
            usage=self.usage(body),
            model=body.get("model") or "",
            request_id=body.get("id") or "",
            ended="refused" if refusal or finish == "content_filter" else ended,
        )

    def embedding(self, model: Model, texts: Sequence[str]) -> Json:
        """The body of a request for embeddings."""
        return {
            "model": model.model,
            "input": list(texts),
            "encoding_format": "float",
            **model.parameters,
        }

    def vectors(self, body: Mapping[str, Any]) -> Vectors:
        """The embeddings of a response."""
        data = sorted(body["data"], key=lambda item: item["index"])
        return Vectors(
            vectors=tuple(tuple(map(float, item["embedding"])) for item in data),
            usage=_usage(body.get("usage") or {}),
            model=body.get("model") or "",
        )

    def usage(self, body: Mapping[str, Any]) -> Usage:
        """What a response was charged for."""
        return _usage(body.get("usage") or {})

    def error(self, body: object) -> tuple[str, str]:
        """The code and the text of an error."""
        inner = body.get("error") if isinstance(body, Mapping) else None
        if not isinstance(inner, Mapping):
            return "", str(inner or "")
        return str(inner.get("code") or inner.get("type") or ""), str(inner.get("message") or "")


def _image(image: Image) -> Json:
    url = image.url or f"data:{image.media_type};base64,{image.base64}"
    return {"type": "image_url", "image_url": {"url": url}}


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Its `prompt_tokens` hold the cached ones."""
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(
        tokens_in=max(0, int(usage.get("prompt_tokens") or 0) - cached),
        tokens_cached=cached,
        tokens_out=int(usage.get("completion_tokens") or 0),
    )
