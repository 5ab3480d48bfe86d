"""Eight workers under the limit of a provider that enforces it, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.pipeline.worker.worker_kit import QUICK, Bench, fill, hop, map_step, output, totals

import millrace as mr
from millrace.pipeline.define.context import Context
from millrace.testing.paid_models.service import PaidModels
from millrace.testing.paid_models.token_limit import TokenLimit

CONFIG = QUICK.with_options(job_worker_time=600)
WORKERS = 8
TPM = 90_000
ROWS = 1200
LEFT_OUT = 150


class Asker:
    """Asks for a row, and notes what the provider says that it allows and that is left."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=60.0)

    def __call__(self, row: dict[str, Any], context: Context) -> dict[str, Any]:
        text = "word " * (20 + row["x"] % 20)
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
        response = self.client.post("/chat/completions", json=body)
        left = response.headers.get("x-ratelimit-remaining-tokens")
        context.allowed(
            tpm=float(response.headers["x-ratelimit-limit-tokens"]), tokens_left=float(left)
        )
        response.raise_for_status()
        context.spend(tokens_in=response.json()["usage"]["prompt_tokens"])
        return row


class TimedLimit(TokenLimit):
    """A limit that is halved half-way; it counts what it allowed between two calls."""

    passed: int = 0
    allowed: float = 0.0
    used: int = 0
    made: int = 0
    refusals: int = 0

    def take(self, now: float, tokens: int) -> float | None:
        """Count calls behind the first ones, which nobody knows the cost of, up to the last."""
        before, is_counted = self._at, LEFT_OUT <= self.passed < ROWS - LEFT_OUT
        wait_s = super().take(now, tokens)
        if is_counted:
            self.allowed += (now - (before or now)) * self.tpm / 60
            self.made += 1
            self.refusals += wait_s is not None
            self.used += tokens if wait_s is None else 0
        if wait_s is None:
            self.passed += 1
            if self.passed == ROWS // 2:
                self.tpm /= 2
        return wait_s


@pytest.mark.slow
def test_eight_workers_use_what_is_allowed_also_when_that_is_halved(tmp_path: Path) -> None:
    limit = TimedLimit(tpm=TPM, burst_s=5.0)
    with PaidModels(tmp_path / "invoice.log", delay_s=0.2, limit=limit) as service:
        asker = Asker(service.openai_url)
        step = map_step(
            "ask",
            asker,
            context=True,
            expensive=True,
            concurrency=8,
            ordered=False,
            limits=mr.Limits(tpm=10 * TPM),
        )
        bench = Bench(tmp_path, [hop(step, partitions=WORKERS)], CONFIG)
        fill(bench.broker, range(ROWS), partitions=WORKERS)
        bench.run(workers=WORKERS)
        asker.client.close()

    counted = totals(bench.broker, "ask")
    assert len(output(bench.broker, "ask")) == counted.calls == ROWS
    assert counted.refused == limit.refused
    assert limit.refusals < 0.01 * limit.made, f"{limit.refusals} of {limit.made} refused"
    assert limit.used >= 0.95 * limit.allowed, f"{limit.used} of {limit.allowed:.0f} tokens"
