"""Requests to a provider: what a failure says, and that it never says the key."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

import millrace as mr
from millrace.llm.provider_calls import RequestFailed, reply_of, retry_after_s

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
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None
