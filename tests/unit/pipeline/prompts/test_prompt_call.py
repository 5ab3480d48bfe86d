"""Calls of prompt steps against a stand-in that writes an invoice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.llm.model_questions import Repair
from millrace.llm.models import Model
from millrace.llm.output_schema import is_strict, schema_of
from millrace.llm.prompts import Prompt
from millrace.llm.templates import template_of
from millrace.pipeline.prompts.embed_call import EmbedCall, Embedding
from millrace.pipeline.prompts.prompt_call import PromptCall
from millrace.pipeline.prompts.prompt_errors import QuestionRefused
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.model_answers import Faults
from millrace.testing.paid_models.service import PaidModels
from millrace.testing.paid_models.token_limit import TokenLimit

PNG = b"\x89PNG\r\n\x1a\n and the rest"


@dataclass
class Review:
    label: Literal["good", "bad"]
    score: float


def prompt_of(llm: Model, output: type | None = Review, **more: object) -> Prompt:
    schema = None if output is None else schema_of("p", output)
    prompt = Prompt(
        model=llm,
        template=template_of("p", "template", "Judge {text}", ["id", "text"]),
        schema=schema,
        is_strict=schema is not None and is_strict(schema),
        keep=("id",),
    )
    return replace(prompt, **more)  # type: ignore[arg-type]


def context(key: str = "k1") -> mr.Context:
    return mr.Context(job="j", step="p", keys=(key,))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "text": f"text {number}"}


Service = Callable[..., PaidModels]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with contextlib.ExitStack() as stack:
        invoice = tmp_path / "invoice.log"
        yield lambda **options: stack.enter_context(PaidModels(invoice, **options))


def models(service: PaidModels) -> list[Model]:
    return [
        mr.llm.openai("gpt-4o-mini", base_url=service.openai_url, temperature=0),
        mr.llm.anthropic("claude-haiku-4-5", base_url=service.anthropic_url),
    ]


def called(*prompts_and_rows: tuple[PromptCall | EmbedCall, Any]) -> list[Any]:
    """The outcomes of calls at once, with what each has spent."""

    async def all_at_once() -> list[Any]:
        contexts = [context(f"k{n}") for n in range(len(prompts_and_rows))]
        calls = [call(row, c) for (call, row), c in zip(prompts_and_rows, contexts, strict=True)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return [(o, c.noted.noted) for o, c in zip(outcomes, contexts, strict=True)]

    with asyncio.Runner() as runner:
        out = runner.run(all_at_once())
        for call in {id(call): call for call, _ in prompts_and_rows}.values():
            runner.run(call._calls._client.aclose())
        return out


@pytest.mark.parametrize("provider", [0, 1])
def test_an_answer_is_a_row_and_what_it_costs_equals_the_invoice(
    service: Service, tmp_path: Path, provider: int
) -> None:
    llm = models(service())[provider]
    call = PromptCall(prompt_of(llm))

    ((made, noted),) = called((call, row(7)))

    assert made["id"] == 7
    assert made["label"] in ("good", "bad")
    (charge,) = charges(tmp_path / "invoice.log")
    assert charge.key == "k0"
    assert noted.spend.tokens_in == charge.tokens_in > 0
    assert noted.spend.tokens_out == charge.tokens_out
    assert noted.spend.usd == pytest.approx(charge.usd, abs=1e-9)
    assert (noted.model, noted.request_id) == (llm.model, charge.request_id)


@pytest.mark.parametrize("provider", [0, 1])
def test_a_malformed_answer_is_repaired_once(
    service: Service, tmp_path: Path, provider: int
) -> None:
    call = PromptCall(prompt_of(models(service(faults=Faults(malformed=1.0)))[provider]))

    ((made, noted),) = called((call, row(7)))

    assert made["id"] == 7
    first, second = charges(tmp_path / "invoice.log")
    assert (first.key, second.key) == ("k0", "k0-repair")
    assert noted.spend.usd == pytest.approx(first.usd + second.usd, abs=1e-9)


@pytest.mark.parametrize("provider", [0, 1])
def test_an_answer_that_is_never_right_is_kept_with_its_error(
    service: Service, tmp_path: Path, provider: int
) -> None:
    call = PromptCall(prompt_of(models(service(faults=Faults(stubborn=1.0)))[provider]))

    ((error, noted),) = called((call, row(7)))

    assert isinstance(error, mr.AnswerUnusable)
    assert error.answer == "I would rather not say."
    assert "to fix:" in str(error)
    assert len(charges(tmp_path / "invoice.log")) == 2
    assert noted.spend.tokens > 0


def test_a_busy_provider_and_a_wrong_key_are_told_apart(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key")
    busy = PromptCall(prompt_of(models(service(faults=Faults(busy=1.0)))[0]))
    locked = PromptCall(prompt_of(models(service(key="sk-right"))[0]))
    nowhere = mr.llm.openai("m", base_url="http://127.0.0.1:1/v1")
    away = PromptCall(prompt_of(nowhere))

    (first, _), (second, _), (third, _) = called((busy, row(1)), (locked, row(1)), (away, row(1)))

    assert isinstance(first, mr.ProviderBusy)
    assert first.retry_after == 0.05
    assert isinstance(second, mr.NotAllowed)
    assert "sk-wrong-key" not in str(second)
    assert isinstance(third, mr.ProviderBusy)


def test_equal_questions_in_flight_are_asked_once_and_later_ones_never(
    service: Service, tmp_path: Path
) -> None:
    started = service(delay_s=0.05)
    mr.open(tmp_path / "mill").close()
    call = PromptCall(prompt_of(models(started)[0]), caches=True)
    other = PromptCall(prompt_of(models(started)[0], keep=()), caches=True)
    call.open_in(str(tmp_path / "mill"))
    other.open_in(str(tmp_path / "mill"))

    made = called(*((call, {"id": n, "text": "the same"}) for n in range(20)))
    later = called((other, {"id": 99, "text": "the same"}), (other, row(1)))

    assert [row["id"] for row, _ in made] == list(range(20))
    assert len({row["score"] for row, _ in made} | {later[0][0]["score"]}) == 1
    assert len(charges(tmp_path / "invoice.log")) == 2
    assert sum(noted.spend.tokens > 0 for _, noted in made) == 1
    assert later[0][1].spend.tokens == 0


def test_an_image_is_sent_as_it_is_and_no_image_is_no_question(service: Service) -> None:
    llm = models(service())[0]
    call = PromptCall(prompt_of(llm, None, images=("photo",)))

    fine, wrong = called(
        (call, row(1) | {"photo": PNG}),
        (call, row(1) | {"photo": b"no image"}),
    )

    assert fine[0] == {"id": 1, "answer": "about Judge text 1"}
    assert isinstance(wrong[0], QuestionRefused)


def test_texts_are_embedded_in_one_request_and_each_once(service: Service, tmp_path: Path) -> None:
    llm = mr.llm.openai("text-embedding-3-small", base_url=service().openai_url)
    mr.open(tmp_path / "mill").close()
    call = EmbedCall(
        Embedding(model=llm, column="text", output="vector", keep=("id",)), caches=True
    )
    call.open_in(str(tmp_path / "mill"))
    batch = pa.record_batch({"id": [1, 2, 3, 4], "text": ["a", None, "b", "a"]})
    more = pa.record_batch({"id": [5, 6], "text": ["b", "c"]})

    ((made, _),) = called((call, batch))
    called((call, more))

    assert made.schema.names == ["id", "vector"]
    vectors = made["vector"].to_pylist()
    assert vectors[0] == vectors[3] != vectors[2]
    assert vectors[1] is None
    assert [charge.tokens_in for charge in charges(tmp_path / "invoice.log")] == [2, 1]


def test_a_response_without_vectors_is_charged(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = mr.llm.openai("text-embedding-3-small", base_url=service().openai_url)
    call = EmbedCall(Embedding(model=llm, column="text", output="vector", keep=("id",)))
    post = call._calls.post

    async def emptied(path: str, body: Any, *, key: str = "") -> Any:  # noqa: ANN401 - JSON
        reply = await post(path, body, key=key)
        return replace(reply, body=reply.body | {"data": None})

    monkeypatch.setattr(call._calls, "post", emptied)
    ((error, noted),) = called((call, pa.record_batch({"id": [1], "text": ["a long text"]})))

    assert isinstance(error, mr.AnswerUnusable)
    (charge,) = charges(tmp_path / "invoice.log")
    assert noted.spend.tokens_in == charge.tokens_in > 0


@pytest.mark.parametrize("provider", [0, 1])
def test_a_wrong_key_is_noticed_before_the_first_row(
    service: Service, monkeypatch: pytest.MonkeyPatch, provider: int
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-wrong-key")
    with pytest.raises(UserError, match="set (OPENAI|ANTHROPIC)_API_KEY") as refused:
        PromptCall(prompt_of(models(service(key="sk-right"))[provider])).open_in("")
    assert "sk-wrong-key" not in str(refused.value)

    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-right")
    PromptCall(prompt_of(models(service(key="sk-right"))[provider])).open_in("")
    away = mr.llm.openai("m", base_url="http://127.0.0.1:1/v1")
    PromptCall(prompt_of(away)).open_in("")


def test_input_that_grew_by_a_tenth_costs_a_tenth_in_another_job(
    service: Service, tmp_path: Path
) -> None:
    llm = models(service())[0]
    mr.open(tmp_path / "mill").close()
    for rows in (100, 110):
        job = PromptCall(prompt_of(llm), caches=True)
        job.open_in(str(tmp_path / "mill"))
        made = called(*((job, row(number)) for number in range(rows)))
        assert [answer["id"] for answer, _ in made] == list(range(rows))

    assert len(charges(tmp_path / "invoice.log")) == 110


def outcomes_one_by_one(call: PromptCall, times: int) -> list[Any]:
    """Calls for one row, each behind the last one, as a step makes them."""

    async def all_calls() -> list[Any]:
        found: list[Any] = []
        for _ in range(times):
            found += await asyncio.gather(call(row(7), context("k0")), return_exceptions=True)
        return found

    with asyncio.Runner() as runner:
        found = runner.run(all_calls())
        runner.run(call._calls._client.aclose())
        return found


@pytest.mark.parametrize("provider", [0, 1])
def test_a_busy_provider_ends_the_call_and_a_paid_answer_waits_for_its_repair(
    service: Service, tmp_path: Path, provider: int
) -> None:
    started = service(faults=Faults(busy=1.0, malformed=1.0))
    call = PromptCall(prompt_of(models(started)[provider]))

    first, second, third = outcomes_one_by_one(call, 3)

    assert isinstance(first, mr.ProviderBusy), "at the question"
    assert isinstance(second, mr.ProviderBusy), "at the repair"
    assert third["id"] == 7
    assert [charge.key for charge in charges(tmp_path / "invoice.log")] == ["k0", "k0-repair"]
    assert call._repairs == {}


def test_answers_that_wait_for_their_repair_do_not_become_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.pipeline.prompts.prompt_call.REPAIRS_MAX", 3)
    call = PromptCall(prompt_of(mr.llm.openai("m", base_url="http://127.0.0.1:1/v1")))

    for number in range(5):
        call._remember(f"k{number}", Repair("?", "no JSON"))

    assert list(call._repairs) == ["k2", "k3", "k4"]


@pytest.mark.parametrize("provider", [0, 1])
def test_what_a_provider_says_that_is_left_is_noted_also_when_it_refuses(
    service: Service, provider: int
) -> None:
    limit = TokenLimit(tpm=600, burst_s=6.0)
    started = service(limit=limit)
    llm = models(started)[provider]
    call = PromptCall(prompt_of(llm, None, template=template_of("p", "t", "{text}", ["text"])))
    long = row(1) | {"text": "word " * 45}

    (_, first), (refused, second) = called((call, long), (call, long))

    assert isinstance(refused, mr.ProviderBusy)
    assert (first.allowed.rpm, first.allowed.tpm) == (None, 600.0)
    assert 0 <= second.allowed.tokens_left < 60


def test_an_answer_of_no_use_is_asked_for_again_when_its_row_is(
    service: Service, tmp_path: Path
) -> None:
    started = service(faults=Faults(stubborn=1.0))
    mr.open(tmp_path / "mill").close()
    call = PromptCall(prompt_of(models(started)[0]), caches=True)
    call.open_in(str(tmp_path / "mill"))

    ((first, _),) = called((call, row(7)))
    started.desk.faults = Faults()
    ((second, _),) = called((call, row(7)))
    ((third, _),) = called((call, row(7)))

    assert isinstance(first, mr.AnswerUnusable)
    assert second == third
    assert second["id"] == 7
    assert len(charges(tmp_path / "invoice.log")) == 3, "a question, its repair, and once more"


@pytest.mark.parametrize("provider", [0, 1])
def test_a_response_without_an_answer_is_charged_and_asked_for_again_when_its_row_is(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: int
) -> None:
    llm = models(service())[provider]
    mr.open(tmp_path / "mill").close()
    call = PromptCall(prompt_of(llm), caches=True)
    call.open_in(str(tmp_path / "mill"))
    post = call._calls.post

    async def emptied(path: str, body: Any, *, key: str = "") -> Any:  # noqa: ANN401 - JSON
        reply = await post(path, body, key=key)
        missing: dict[str, Any] = {"choices": [], "content": None}
        return replace(reply, body=reply.body | missing)

    monkeypatch.setattr(call._calls, "post", emptied)
    ((error, noted),) = called((call, row(7)))
    monkeypatch.undo()
    ((made, _),) = called((call, row(7)))

    assert isinstance(error, mr.AnswerUnusable)
    assert "usage" in (error.answer or "")
    first, _ = charges(tmp_path / "invoice.log")
    assert noted.spend.usd == pytest.approx(first.usd, abs=1e-9)
    assert noted.request_id == first.request_id
    assert made["id"] == 7


def test_an_answer_is_charged_that_a_time_limit_ends_on_its_way_into_the_cache(
    service: Service, tmp_path: Path
) -> None:
    llm = models(service())[0]
    mr.open(tmp_path / "mill").close()
    call = PromptCall(prompt_of(llm), caches=True)
    call.open_in(str(tmp_path / "mill"))
    cache, asked = call._cache, context("k0")
    assert cache is not None
    write, is_late = cache._write, threading.Event()

    def write_late(key: str, body: dict[str, Any]) -> None:
        write(key, body)
        is_late.wait(10)

    async def within_limit() -> None:
        making = asyncio.create_task(call(row(7), asked))
        while not asked.noted.noted.request_id and not making.done():  # noqa: ASYNC110 - a note
            await asyncio.sleep(0.01)
        making.cancel()
        is_late.set()
        with contextlib.suppress(asyncio.CancelledError):
            await making
        await call._calls._client.aclose()

    cache._write = write_late  # type: ignore[method-assign]
    asyncio.run(asyncio.wait_for(within_limit(), 10))

    (charge,) = charges(tmp_path / "invoice.log")
    assert asked.noted.noted.spend.tokens_out == charge.tokens_out > 0
