"""Prompt steps that workers run: what happens to a step when its provider says no."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.pipeline.prompts.prompt_job_kit import asking_bench, prompt_step
from tests.unit.pipeline.worker.worker_kit import dead, happened, output, totals

import millrace as mr
from millrace.pipeline.calling import function_instances
from millrace.pipeline.core.job_events import JobEventKind
from millrace.testing.paid_models.invoice import charges
from millrace.testing.paid_models.model_answers import Faults
from millrace.testing.paid_models.service import PaidModels


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    yield
    function_instances.free_all()


def test_a_key_that_is_lost_ends_the_step_and_the_next_run_pays_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-right")

    def lose_the_key(question: str) -> None:
        if question == "number 13":
            service.desk.key = "sk-another"

    with PaidModels(tmp_path / "invoice.log", key="sk-right", answers=lose_the_key) as service:
        llm = mr.llm.openai("gpt-4o-mini", base_url=service.openai_url)
        bench = asking_bench(tmp_path, prompt_step(llm))
        (outcome,) = bench.run()

        assert outcome.ended == "failed"
        rows = output(bench.broker, "ask")
        assert 0 < len(rows) <= len(charges(tmp_path / "invoice.log")) < 40
        assert dead(bench.broker, "ask") == []
        (failed,) = [e for e in happened(bench.broker) if e.happened is JobEventKind.FAILED]
        assert "OPENAI_API_KEY" in failed.detail["error"]

        service.desk.key = "sk-right"
        bench = bench.again()
        bench.run()

    assert sorted(output(bench.broker, "ask")) == list(range(40))
    assert len(charges(tmp_path / "invoice.log")) == 40
    assert totals(bench.broker, "ask").dead_letters == 0


@pytest.mark.parametrize("fault", ["busy", "broken"])
def test_a_busy_provider_is_a_wait_of_the_step_and_each_answer_is_paid_for_once(
    tmp_path: Path, fault: str
) -> None:
    faults = Faults(**{fault: 0.5})  # type: ignore[arg-type]
    with PaidModels(tmp_path / "invoice.log", faults=faults) as service:
        llm = mr.llm.openai("gpt-4o-mini", base_url=service.openai_url)
        bench = asking_bench(tmp_path, prompt_step(llm))
        bench.run()

    assert sorted(output(bench.broker, "ask")) == list(range(40))
    assert len(charges(tmp_path / "invoice.log")) == 40
    counted = totals(bench.broker, "ask")
    assert (counted.calls, counted.errors) == (40, 0)
    assert counted.refused > 5
