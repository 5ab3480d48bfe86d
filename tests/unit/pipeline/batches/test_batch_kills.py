"""Jobs that ask in batches, killed with SIGKILL at each point around a batch, and at any time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.pipeline.batches.batch_job_kit import judge, model, plan, run_to_end, take_in

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
