"""The invoice of a stand-in: a line for each answer that it charges for.

A line is written before the answer is sent: so the invoice also has answers that got lost.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from millrace.llm.model_questions import Usage
from millrace.llm.prices import Price, price_of

FREE: Final = Price(input=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One line of the invoice."""

    at: float
    kind: str
    """"chat", "messages", "embeddings" or "batch"."""
    model: str
    request_id: str
    key: str
    """The idempotency key of the request, or the `custom_id` of a request of a batch."""
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    usd: float


class Invoice:
    """Appends charges to a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """A file that exists goes on."""
        self.path = os.fspath(path)
        # Appended with one write each: lines of several processes do not mix.
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def charge(
        self, at: float, kind: str, model: str, request_id: str, key: str, usage: Usage
    ) -> None:
        """Charge for one answer by the price of its model; a model without one is free."""
        counts = asdict(usage)
        usd = (price_of(model) or FREE).usd(**counts, batch=kind == "batch")
        del counts["tokens_written"]  # They are a part of `tokens_in`.
        line = Charge(
            at=at, kind=kind, model=model, request_id=request_id, key=key, usd=usd, **counts
        )
        os.write(self._handle, (json.dumps(asdict(line)) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def charges(path: str | os.PathLike[str]) -> list[Charge]:
    """All charges of an invoice, in order."""
    try:
        with open(path, encoding="utf-8") as file:
            return [Charge(**json.loads(line)) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
