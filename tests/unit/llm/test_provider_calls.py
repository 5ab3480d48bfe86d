"""Requests to a provider: what a failure says, and that it never says the key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.llm.batch_calls import batch_calls_of
from millrace.llm.provider_calls import (
    ProviderCalls,
    RequestFailed,
    check_key,
    key_of,
    reply_of,
    retry_after_s,
)

LLM = mr.llm.openai("m", base_url="http://host/v1")


def failure(status: int, **more: object) -> RequestFailed:
    with pytest.raises(RequestFailed) as failed:
        reply_of(LLM, httpx.Response(status, **more), "sk-secret")  # type: ignore[arg-type]
    return failed.value


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (429, "rate_limit_exceeded", "busy"),
        (429, "insufficient_quota", "not allowed"),
        (500, "", "busy"),
        (529, "overloaded_error", "busy"),
        (401, "invalid_api_key", "not allowed"),
        (402, "", "not allowed"),
        (404, "model_not_found", "not allowed"),
        (400, "context_length_exceeded", "refused"),
        (200, "", "busy"),
    ],
)
def test_a_failure_has_a_kind(status: int, code: str, why: str) -> None:
    body = {"error": {"code": code, "message": "no"}}
    more = {"text": "<html>"} if status == 200 else {"json": body}

    failed = failure(status, **more)

    assert failed.why == why
    assert "to fix:" in str(failed)


def test_one_question_that_is_refused_and_an_account_without_credit_are_told_apart() -> None:
    flagged = {"error": {"code": 403, "message": "Your input was flagged for violence"}}
    broke = {
        "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}
    }

    assert failure(403, json=flagged).why == "refused"
    assert failure(400, json=broke).why == "not allowed"
    assert "has left, and run again" in str(failure(400, json=broke))
    assert "base_url=" in str(failure(404, json={}))


def test_a_provider_that_repeats_the_key_does_not_spread_it() -> None:
    body = {"error": {"code": "bad sk-secret", "message": "wrong key sk-secret"}}

    assert "sk-secret" not in str(failure(401, json=body))
    assert "sk-secret" not in str(failure(500, text="at sk-secret"))
    assert "OPENAI_API_KEY" in str(failure(401, json=body))


def test_the_wait_that_a_provider_asks_for_is_read_in_each_form() -> None:
    now = datetime(2026, 11, 19, 4, 0, 0, tzinfo=UTC)

    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after-ms": "300", "retry-after": "9"}) == 0.3
    assert retry_after_s({"retry-after": "Thu, 19 Nov 2026 04:00:10 GMT"}, now) == 10.0
    assert retry_after_s({"retry-after": "Thu, 19 Nov 2026 04:00:10 -0000"}, now) == 10.0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize("letter", ["\n", "\r\nX-Other: 1", "\u2026", "\x00"])
def test_a_key_that_no_header_can_hold_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": f"sk-sec{letter}ret"})
    with pytest.raises(UserError, match="set OPENAI_API_KEY in the environment") as checked:
        check_key(LLM)
    with pytest.raises(RequestFailed) as asked:
        asyncio.run(ProviderCalls(LLM).post("/chat/completions", {}))
    with pytest.raises(RequestFailed) as looked:
        batch_calls_of(LLM).look("batch-1")

    for error in (checked.value, asked.value, looked.value):
        assert "sk-" not in str(error)
    assert (asked.value.why, looked.value.why) == ("not allowed", "not allowed")


def test_a_line_break_behind_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")

    assert key_of(LLM) == "sk-secret"


def test_half_of_a_surrogate_pair_is_a_question_mark_and_a_whole_one_stays() -> None:
    body = b'{"half": "so \\ud83d", "whole": "\\ud83d\\ude00", "plain": "\xc3\xa4"}'

    reply = reply_of(LLM, httpx.Response(200, content=body), None)

    assert reply.body == {"half": "so ?", "whole": "\U0001f600", "plain": "\xe4"}
