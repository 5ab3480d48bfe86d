"""The function of an embed step: asks for the vectors of a batch of texts in one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.llm.answer_cache import AnswerCache
from millrace.llm.model_questions import Vectors, request_key
from millrace.llm.models import Model
from millrace.llm.openai_wire import OpenAiWire
from millrace.llm.provider_calls import ProviderCalls, check_key
from millrace.llm.wire_formats import answer_without_text
from millrace.pipeline.paid.call_errors import AnswerUnusable
from millrace.pipeline.prompts.prompt_call import NO_ANSWER, CallContext, posted

VECTOR: Final = pa.list_(pa.float32())
_WIRE: Final = OpenAiWire()
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What an embed step asks for."""

    model: Model
    column: str
    output: str
    keep: tuple[str, ...]


class EmbedCall:
    """Asks for the vectors of the texts that the workspace has none for."""

    def __init__(self, embedding: Embedding, *, caches: bool = False) -> None:
        self._embedding, self._caches = embedding, caches
        self._calls = ProviderCalls(embedding.model)
        self._cache: AnswerCache | None = None
        self._is_open = False

    def open_in(self, workspace: str) -> None:
        """Check the key, and use the answers of a workspace; called before the first batch."""
        if not self._is_open:
            check_key(self._embedding.model)
        self._is_open = True
        if self._caches and self._cache is None:
            self._cache = AnswerCache(workspace)

    async def __call__(self, batch: pa.RecordBatch, context: CallContext) -> pa.RecordBatch:
        """The rows with their vectors; a row without a text has none."""
        given = batch[self._embedding.column].to_pylist()
        texts = list(dict.fromkeys(text for text in given if text))
        vectors = await self._vectors(texts, context)
        kept = [batch[name] for name in self._embedding.keep]
        column = pa.array([vectors.get(text) for text in given], VECTOR)
        names = [*self._embedding.keep, self._embedding.output]
        return pa.RecordBatch.from_arrays([*kept, column], names=names)

    async def _vectors(
        self, texts: Sequence[str], context: CallContext
    ) -> dict[str, Sequence[float]]:
        found: dict[str, Sequence[float]] = {}
        if self._cache is not None:
            stored = await self._cache.stored([self._key(text) for text in texts])
            found = {
                text: body["vector"]
                for text, body in zip(texts, stored, strict=True)
                if body is not None
            }
        missing = [text for text in texts if text not in found]
        if missing:
            made = await self._ask(missing, context)
            found |= dict(zip(missing, made.vectors, strict=True))
            if self._cache is not None:
                await self._cache.store(
                    {self._key(text): {"vector": list(found[text])} for text in missing}
                )
        return found

    def _key(self, text: str) -> str:
        model = self._embedding.model
        return request_key(model, _WIRE.embeds_at, _WIRE.embedding(model, [text]))

    async def _ask(self, texts: Sequence[str], context: CallContext) -> Vectors:
        model = self._embedding.model
        body = _WIRE.embedding(model, texts)
        reply = await posted(self._calls, _WIRE.embeds_at, body, context.key, context)
        paid, price = answer_without_text(_WIRE, reply.body), model.price
        tokens = paid.usage.tokens_in
        context.spend(
            tokens_in=tokens,
            usd=None if price is None else price.usd(tokens_in=tokens),
            model=model.model,
            request_id=paid.request_id,
        )
        try:
            vectors = _WIRE.vectors(reply.body)
        except NO_ANSWER as error:
            raise _no_vectors(model, repr(error)) from None
        if len(vectors.vectors) != len(texts):
            raise _no_vectors(model, f"{len(vectors.vectors)} vectors for {len(texts)} texts")
        return vectors

    def close(self) -> None:
        """Close the connections and the cache, when the worker turns to another step."""
        self._calls.close()
        if self._cache is not None:
            self._cache.close()


def _no_vectors(model: Model, found: str) -> AnswerUnusable:
    return AnswerUnusable(
        f"{model.model} gave no embeddings\n  found: {found}\n"
        f"  to fix: see that {model.base_url} speaks the format of OpenAI"
    )
