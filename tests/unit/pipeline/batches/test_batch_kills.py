"""Jobs that ask in batches, killed with SIGKILL at each point around a batch, and at any time."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.unit.pipeline.batches.batch_job_kit import (
    ROWS,
    judge,
    model,
    plan,
    run_to_end,
    take_in,
)
from tests.unit.pipeline.worker.worker_kit import JOB, output, totals

import millrace as mr
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.service import PaidModels

POINTS = [
    "batch.intent.before",
    "batch.intent.after",
    "batch.make.before",
    "batch.make.after",
    "batch.made.before",
    "batch.made.after",
    "batch.results.after",
    "worker.settle.before",
    "worker.settle.after",
    "worker.publish.before",
    "worker.publish.after",
]


def killed_at(folder: Path, provider: str, faults: list[str], after: list[float]) -> int:
    take_in(folder)
    with PaidModels(folder / "invoice.log", plans=plan) as service:
        killed = run_to_end(folder, model(provider, service), faults=faults, kill_after_s=after)
        judge(folder, service, provider=provider)
    return killed


def test_a_batch_whose_maker_was_killed_before_it_knew_its_id_is_found(tmp_path: Path) -> None:
    assert killed_at(tmp_path, "openai", ["batch.make.after:kill"], []) == 1


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_pays_nothing_twice(tmp_path: Path, point: str, provider: str) -> None:
    assert killed_at(tmp_path, provider, [f"{point}:kill", f"{point}:kill"], []) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_kills_at_any_time_pay_nothing_twice(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a seed replays it
    after = [draw.uniform(0.3, 1.5) for _ in range(5)]
    killed_at(tmp_path, draw.choice(["openai", "anthropic"]), [], after)


def judge_budget(folder: Path) -> None:
    """All that was paid for came out, and nothing more is held."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    rows = output(broker, "ask")
    counted = totals(broker, "ask")
    shares = broker.read(hops.budget_journal(JOB, "ask"), 0).rows().to_pylist()
    broker.close()
    paid = charges(folder / "invoice.log")
    tokens = sum(charge.tokens_in + charge.tokens_out for charge in paid)
    assert len(rows) == len(set(rows)) == len(paid) == counted.calls
    assert counted.spend.tokens == tokens
    assert (shares[-1]["total_calls"], shares[-1]["total_tokens"]) == (counted.calls, tokens)


def spent_in(
    folder: Path, provider: str, budget: mr.Budget, faults: list[str], after: list[float]
) -> tuple[int, int]:
    """A job with a budget for a part of its rows, then with more: first calls and kills."""
    take_in(folder)
    with PaidModels(folder / "invoice.log", plans=plan) as service:
        llm = replace(model(provider, service), parameters={"max_tokens": 12})
        run = partial(run_to_end, folder, llm)
        killed = run(faults=faults, kill_after_s=after, budget=budget)
        judge_budget(folder)
        paid = len(charges(folder / "invoice.log"))
        run(faults=[], kill_after_s=[], budget=mr.Budget(calls=ROWS))
    judge_budget(folder)
    assert len(charges(folder / "invoice.log")) == ROWS
    return paid, killed


@pytest.mark.slow
@pytest.mark.parametrize("budget", [mr.Budget(tokens=120), mr.Budget(usd=0.00004)])
def test_a_budget_holds_for_batches_and_a_higher_one_lets_them_go_on(
    tmp_path: Path, budget: mr.Budget
) -> None:
    paid, _ = spent_in(tmp_path, "openai", budget, [], [])

    # An average question costs about six tokens, or 0.0000025 dollars at half the price.
    assert 10 < paid < 30


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("point", POINTS)
def test_a_budget_holds_for_batches_through_kills(
    tmp_path: Path, point: str, provider: str
) -> None:
    faults = [f"{point}:kill", f"{point}:kill"]
    paid, killed = spent_in(tmp_path, provider, mr.Budget(calls=25), faults, [])
    assert paid == 25
    assert killed >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_budget_holds_for_batches_through_kills_at_any_time(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a seed replays it
    after = [draw.uniform(0.3, 1.5) for _ in range(4)]
    provider = draw.choice(["openai", "anthropic"])
    paid, _ = spent_in(tmp_path, provider, mr.Budget(calls=25), [], after)
    assert paid == 25
