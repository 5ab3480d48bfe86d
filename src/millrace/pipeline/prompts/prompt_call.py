"""The function of a prompt step: asks a model for each row. Made once in a worker process.

Invariant: a request is made once in a call. A provider that is busy ends the call: the step waits,
with its slot free, and calls again. An answer that is to be repaired is remembered meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Protocol

from millrace.llm.answer_cache import AnswerCache
from millrace.llm.model_questions import Answer, Question, Repair, request_key
from millrace.llm.prompts import Prompt, Row, Unfit
from millrace.llm.provider_calls import (
    ProviderCalls,
    Reply,
    RequestFailed,
    check_key,
    limits_of,
)
from millrace.llm.wire_formats import answer_without_text, wire_of
from millrace.pipeline.paid.call_errors import AnswerUnusable, NotAllowed, ProviderBusy
from millrace.pipeline.paid.spend import NANO_USD, CallSpend, Spend
from millrace.pipeline.prompts.prompt_errors import QuestionRefused

NO_ANSWER: Final = (AttributeError, KeyError, IndexError, TypeError, ValueError)
"""Errors of reading a response that is not of its format."""

REPAIRS_MAX: Final = 10_000
"""Answers that wait for their repair; a worker has fewer calls under way."""


class CallContext(Protocol):
    """What a call needs of its `Context`."""

    @property
    def key(self) -> str:
        """The idempotency key of the row."""

    def spend(
        self,
        *,
        tokens_in: int = 0,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        usd: float | None = None,
        model: str = "",
        request_id: str = "",
    ) -> None:
        """Note what the call has cost."""

    def allowed(
        self,
        *,
        rpm: float | None = None,
        tpm: float | None = None,
        calls_left: float | None = None,
        tokens_left: float | None = None,
    ) -> None:
        """Note how many calls and tokens per minute the provider allows."""


class PromptCall:
    """Asks for a row, and once more if the answer does not have the schema."""

    def __init__(self, prompt: Prompt, *, caches: bool = False) -> None:
        self._prompt, self._caches = prompt, caches
        self._wire = wire_of(prompt.model)
        self._calls = ProviderCalls(prompt.model)
        self._cache: AnswerCache | None = None
        self._is_open = False
        self._repairs: dict[str, Repair] = {}
        """By key of the row: answers that were paid for, and are to be repaired."""

    def open_in(self, workspace: str) -> None:
        """Check the key, and use the answers of a workspace; called before the first row."""
        if not self._is_open:
            check_key(self._prompt.model)
        self._is_open = True
        if self._caches and self._cache is None:
            self._cache = AnswerCache(workspace)

    async def __call__(self, row: dict[str, Any], context: CallContext) -> Row:
        """The row with its answer."""
        repair = self._repairs.get(context.key)
        if repair is None:
            made = self._prompt.answered(row, await self._ask(row, context, None))
            if isinstance(made, Unfit) and made.repairable:
                repair = self._remember(context.key, Repair(made.answer, made.complaint))
        if repair is not None:
            made = self._prompt.answered(row, await self._ask(row, context, repair))
            self._repairs.pop(context.key, None)
        if isinstance(made, Unfit):
            await self._forget(row, repair)
            raise unusable(self._prompt, made)
        return made

    async def _forget(self, row: Mapping[str, Any], repair: Repair | None) -> None:
        """Answers of no use are asked for again when the row is."""
        if self._cache is None:
            return
        for asked in {None, repair}:
            body = self._wire.question(self._prompt.model, question_of(self._prompt, row, asked))
            await self._cache.forget(request_key(self._prompt.model, self._wire.asks_at, body))

    def _remember(self, key: str, repair: Repair) -> Repair:
        """Remember an answer until its repair has come; the oldest are forgotten beyond a limit."""
        self._repairs[key] = repair
        while len(self._repairs) > REPAIRS_MAX:
            del self._repairs[next(iter(self._repairs))]
        return repair

    async def _ask(
        self, row: Mapping[str, Any], context: CallContext, repair: Repair | None
    ) -> Answer:
        model, path = self._prompt.model, self._wire.asks_at
        question = question_of(self._prompt, row, repair)
        body = self._wire.question(model, question)
        key = context.key if repair is None else f"{context.key}-repair"

        async def ask() -> dict[str, Any]:
            body_paid_for = (await posted(self._calls, path, body, key, context)).body
            # At once: a time limit may end the call while its answer goes into the cache.
            self._note(context, answer_without_text(self._wire, body_paid_for))
            return body_paid_for

        if self._cache is None:
            reply = await ask()
        else:
            reply, _ = await self._cache.get(request_key(model, path, body), ask)
        try:
            return self._wire.answer(reply, question)
        except NO_ANSWER as error:
            await self._forget(row, repair)
            raise AnswerUnusable(
                f"{model.model} gave a response that is none\n  found: {error!r}\n"
                f"  to fix: see that {model.base_url} speaks the format of {model.provider}",
                answer=str(reply),
            ) from None

    def _note(self, context: CallContext, answer: Answer) -> None:
        noted = call_spend(self._prompt, answer)
        context.spend(
            tokens_in=noted.spend.tokens_in,
            tokens_cached=noted.spend.tokens_cached,
            tokens_out=noted.spend.tokens_out,
            usd=noted.spend.usd if noted.is_priced else None,
            model=noted.model,
            request_id=noted.request_id,
        )

    def close(self) -> None:
        """Close the connections and the cache, when the worker turns to another step."""
        self._calls.close()
        if self._cache is not None:
            self._cache.close()


async def posted(
    calls: ProviderCalls, path: str, body: Mapping[str, Any], key: str, context: CallContext
) -> Reply:
    """The reply to a request, with its limits noted; a failure as the error of a call."""
    try:
        reply = await calls.post(path, body, key=key)
    except RequestFailed as failed:
        _note_limits(failed.headers, context)
        raise call_error(failed) from None
    _note_limits(reply.headers, context)
    return reply


def _note_limits(headers: Mapping[str, str], context: CallContext) -> None:
    said = limits_of(headers)
    if said.rpm is not None or said.tpm is not None:
        context.allowed(**asdict(said))


def question_of(prompt: Prompt, row: Mapping[str, Any], repair: Repair | None) -> Question:
    """The question for a row; an error for an image that is none."""
    try:
        return prompt.question(row, repair)
    except ValueError as error:
        raise QuestionRefused(
            f"a row gives no question\n  found: {error}\n  to fix: filter such rows out before"
        ) from None


def call_spend(prompt: Prompt, answer: Answer, *, batch: bool = False) -> CallSpend:
    """What an answer has cost, by the price of the model."""
    usage, price = answer.usage, prompt.model.price
    counts = asdict(usage)
    usd = None if price is None else price.usd(**counts, batch=batch)
    del counts["tokens_written"]  # They are a part of `tokens_in`.
    return CallSpend(
        spend=Spend(**counts, nano_usd=round((usd or 0) * NANO_USD)),
        model=prompt.model.model,
        request_id=answer.request_id,
        is_priced=usd is not None,
    )


def unusable(prompt: Prompt, unfit: Unfit) -> AnswerUnusable:
    """The error for an answer that makes no row; it keeps the answer."""
    return AnswerUnusable(
        f"the answer of {prompt.model.model} cannot be used\n  found: {unfit.complaint}\n"
        "  to fix: say in the template what is wanted, or ask another model",
        answer=unfit.answer,
    )


def call_error(failed: RequestFailed) -> Exception:
    """A failed request as the error of a call."""
    match failed.why:
        case "busy" | "unreachable":
            return ProviderBusy(str(failed), retry_after=failed.retry_after_s)
        case "not allowed":
            return NotAllowed(str(failed))
        case "refused":
            return QuestionRefused(str(failed))
        case "silent":
            return TimeoutError(str(failed))
