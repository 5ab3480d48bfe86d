"""Batches at a provider are found again: by the key, or by the ids of their requests."""

from __future__ import annotations

import json
from typing import Any

import httpx

import millrace as mr
from millrace.llm.batch_calls import AnthropicBatches, NotSure

LLM = mr.llm.anthropic("claude-haiku-4-5", base_url="http://host")


def batches_of(*listed: dict[str, Any]) -> AnthropicBatches:
    """The batches of a provider that has these, each of one question of the row "k1"."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/results"):
            return httpx.Response(200, text=json.dumps({"custom_id": "k1", "result": {}}))
        return httpx.Response(200, json={"data": listed, "has_more": False})

    calls = AnthropicBatches(LLM)
    calls.close()
    calls._client = httpx.Client(transport=httpx.MockTransport(answer))
    return calls


def batch(name: str, status: str = "ended") -> dict[str, Any]:
    return {
        "id": name,
        "created_at": "2026-11-19T20:00:00Z",
        "processing_status": status,
        "request_counts": {"succeeded": 1},
    }


SINCE_S = 1_795_118_400.0 - 60  # A minute before they were made.


def test_an_earlier_batch_of_the_same_rows_is_not_taken_for_the_one_that_is_looked_for() -> None:
    calls = batches_of(batch("b1"))

    assert calls.find("key", ["k1"], 1, SINCE_S, ()) == "b1"
    assert calls.find("key", ["k1"], 1, SINCE_S, ("b1",)) is None


def test_a_batch_that_is_in_work_may_be_the_one_also_beside_an_earlier_one() -> None:
    calls = batches_of(batch("b2", "in_progress"), batch("b1"))

    assert calls.find("key", ["k1"], 1, SINCE_S, ("b1",)) == NotSure()
