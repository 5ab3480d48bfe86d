"""What the routes of both providers share: invoice, faults, batches, the time that answers take."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.llm.model_questions import Usage
from millrace.testing.paid_models.batch_desk import BatchDesk, Plans, at_once
from millrace.testing.paid_models.invoice import Invoice
from millrace.testing.paid_models.model_answers import Answers, Faults
from millrace.testing.paid_models.token_limit import TokenLimit

SLOW_TIMES: Final = 10


@dataclass(slots=True, kw_only=True)
class Desk:
    """What the servers of both providers share: invoice, faults, the time that answers take."""

    invoice: Invoice
    delay_s: float = 0.0
    faults: Faults = field(default_factory=Faults)
    answers: Answers | None = None
    plans: Plans = at_once
    limit: TokenLimit | None = None
    key: str | None = None
    """The key that requests need; any by default."""
    batches: BatchDesk = field(init=False)
    """Batches in OpenAI's format."""
    message_batches: BatchDesk = field(init=False)
    """Batches in Anthropic's format."""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    honours_keys: bool = False
    """Whether a repeated idempotency key gets the first answer again, free of charge."""
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers by idempotency key."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    seen: set[str] = field(default_factory=set)
    """Questions that were refused once because of a fault."""

    def __post_init__(self) -> None:
        self.batches = BatchDesk("batch", self.plans)
        self.message_batches = BatchDesk("msgbatch", self.plans)

    def request_id(self, prefix: str) -> str:
        """A new id."""
        return f"{prefix}{next(self.numbers):08d}"

    def refusal(self, text: str) -> int | None:
        """The status of a refusal that a fault demands, once for each question."""
        for kind, status in (("busy", 429), ("broken", 500)):
            mark = f"{kind} {text}"
            if mark not in self.seen and self.faults.strikes(kind, text):
                self.seen.add(mark)
                return status
        return None

    async def take_time(self, text: str) -> None:
        """Wait as long as an answer takes."""
        times = SLOW_TIMES if self.faults.strikes("slow", text) else 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s * times)

    def given_before(self, key: str) -> dict[str, Any] | None:
        """The answer that a key got before, if this provider honours keys."""
        return self.given.get(key) if self.honours_keys and key else None

    def charge(self, kind: str, model: str, request_id: str, key: str, usage: Usage) -> None:
        """Charge for an answer."""
        self.invoice.charge(time.time(), kind, model, request_id, key, usage)
