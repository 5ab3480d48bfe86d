"""Simulated worlds: the real machines of coordinated reads over a fake network, disk and clock."""

from __future__ import annotations

import pytest
from tests.sim.plan import Op, Plan, plan_of
from tests.sim.planted import MISTAKES, Mistake
from tests.sim.simulate import failure_of, first_failure, shrunk
from tests.sim.world import run

SEEDS = 400
AT_ONCE = 100
QUICK = 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if number >= QUICK else [])
        for number, first in enumerate(range(0, SEEDS, AT_ONCE))
    ],
)
def test_what_comes_out_of_any_world_is_what_must(first: int) -> None:
    failure = first_failure(range(first, first + AT_ONCE))
    assert failure is None, str(failure)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_a_planted_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.plant(monkeypatch)
    failure = first_failure(range(mistake.seeds), shrink=False)
    assert failure is not None, f"{mistake.name} was not found in {mistake.seeds} seeds"


def test_a_seed_gives_the_same_world_each_time() -> None:
    assert plan_of(7) == plan_of(7)
    assert run(plan_of(7)) == run(plan_of(7))


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {each.name: each for each in MISTAKES}
    by_name["a row at another member"].plant(monkeypatch)
    failure = first_failure(range(10), shrink=False)
    assert failure is not None
    small = shrunk(failure.plan, failure.why)
    assert len(small.ops) <= 3
    assert (failure_of(small) or "").startswith("Wrong: Shown(")


def test_a_plan_can_be_written_by_hand() -> None:
    """A transaction over two journals of which one ACK comes after a crash: whole, and once."""
    world = next(w for w in (plan_of(seed).world for seed in range(100)) if len(w.journals) > 1)
    ops = (Op("add", (0, 0, 2)), Op("add", (0, 1, 2)), Op("end", (0, 1, 0)), Op("settle"))
    after = (Op("crash", (3, 0)), Op("settle"), Op("ack", (0, 0)), Op("settle"))
    assert run(Plan(world, ops + after))["new"]
