"""What a function says about the cost of its call, and what a user may ask for."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.pipeline.define.step_options import options_of


def context() -> mr.Context:
    return mr.Context(job="j", step="pay", keys=("k",))


def test_several_requests_of_one_call_are_added_up() -> None:
    asked = context()
    asked.spend(tokens_in=100, tokens_cached=20, tokens_out=5, usd=0.25, model="large-1")
    asked.spend(tokens_in=1, usd=1e-9, request_id="r2")

    noted = asked.noted.noted
    spend = noted.spend
    assert (spend.tokens_in, spend.tokens_cached, spend.tokens_out) == (101, 20, 5)
    assert spend.nano_usd == 250_000_001
    assert (noted.model, noted.request_id, noted.is_priced) == ("large-1", "r2", True)


def test_two_calls_note_their_costs_apart() -> None:
    first, second = context(), context()
    first.spend(tokens_out=3)
    assert second.noted.noted.spend.tokens == 0
    assert first == second, "the cost is no part of what the call is"


@pytest.mark.parametrize(
    "given", [{"tokens_in": -1}, {"tokens_out": 1.5}, {"usd": -0.1}, {"usd": float("nan")}]
)
def test_costs_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="to fix: give 0 or more"):
        context().spend(**given)


@pytest.mark.parametrize(
    ("make", "given", "text"),
    [
        (mr.Budget, {}, "limits nothing"),
        (mr.Budget, {"usd": 0}, "usd is 0"),
        (mr.Budget, {"calls": 1.5}, "calls is 1.5"),
        (mr.Limits, {}, "limits nothing"),
        (mr.Limits, {"tpm": True}, "tpm is True"),
        (mr.Limits, {"rpm": float("inf")}, "rpm is inf"),
    ],
)
def test_limits_and_budgets_that_say_nothing_are_refused(
    make: Any,  # noqa: ANN401 - either class
    given: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(UserError, match=text):
        make(**given)


def test_what_a_function_says_about_its_failure_survives_pickling() -> None:
    busy = pickle.loads(pickle.dumps(mr.ProviderBusy("busy", retry_after=2.5)))
    unusable = pickle.loads(pickle.dumps(mr.AnswerUnusable("no", answer="sorry")))
    assert (str(busy), busy.retry_after) == ("busy", 2.5)
    assert (str(unusable), unusable.answer) == ("no", "sorry")


def test_calls_at_once_are_shared_among_the_workers() -> None:
    given = {"expensive": True, "concurrency": 64, "limits": mr.Limits(concurrent=40)}
    shared = options_of("map", given)
    assert (shared.workers, shared.concurrency) == (4, 10)

    few = options_of("map", given | {"workers": 8, "limits": mr.Limits(concurrent=3)})
    assert (few.workers, few.concurrency) == (3, 1)
