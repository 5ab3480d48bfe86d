"""The invoice of the provider and the report of the job, whose processes are killed at any time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.pipeline.prompts.prompt_kills_kit import ROWS, reported, run_killed, take_in

import millrace as mr
from millrace.testing.paid_models.invoice import Charge, charges
from millrace.testing.paid_models.model_answers import Faults
from millrace.testing.paid_models.service import PaidModels


def killed_job(folder: Path, seed: int, *, kills: int, honours_keys: bool) -> list[Charge]:
    draw = random.Random(seed)  # noqa: S311 - a seed replays it
    take_in(folder)
    faults = Faults(seed=seed, busy=0.1, broken=0.05, slow=0.1)
    invoice = folder / "invoice.log"
    with PaidModels(invoice, delay_s=0.01, faults=faults, honours_keys=honours_keys) as service:
        llm = mr.llm.openai("gpt-4o-mini", base_url=service.openai_url)
        run_killed(folder, llm, [draw.uniform(0.4, 1.2) for _ in range(kills)])
    return charges(invoice)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_provider_that_honours_keys_charges_what_the_report_says(
    tmp_path: Path, seed: int
) -> None:
    paid = killed_job(tmp_path, seed, kills=4, honours_keys=True)

    rows, step = reported(tmp_path)

    assert rows == list(range(ROWS))
    assert step.usd == pytest.approx(sum(charge.usd for charge in paid), rel=0.001)
    assert step.tokens_in == sum(charge.tokens_in for charge in paid)
    assert step.tokens_out == sum(charge.tokens_out for charge in paid)
    assert sum(group.attempts for group in step.models) == ROWS + step.refused
    assert sum(group.usd for group in step.models) == pytest.approx(step.usd)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_without_keys_the_report_and_its_estimate_of_calls_in_doubt_hold_the_invoice(
    tmp_path: Path, seed: int
) -> None:
    paid = killed_job(tmp_path, seed, kills=4, honours_keys=False)

    rows, step = reported(tmp_path)

    assert rows == list(range(ROWS))
    invoice = sum(charge.usd for charge in paid)
    dearest = max(charge.usd for charge in paid)
    assert len(paid) - ROWS <= step.in_doubt
    assert step.usd <= invoice * 1.001
    assert invoice <= step.usd + step.in_doubt * dearest + invoice * 0.001
    assert step.calls is not None
    assert step.usd_in_doubt == pytest.approx(step.usd / step.calls * step.in_doubt)
    if not step.in_doubt:
        assert step.usd == pytest.approx(invoice, rel=0.001)
