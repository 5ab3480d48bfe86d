"""Charges: a row for each attempt of a paid call, in a journal of its step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from millrace.pipeline.paid.spend import CallSpend

SCHEMA = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("run", pa.int64(), nullable=False),
        pa.field("journal", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("attempt", pa.int64(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("tokens_in", pa.int64(), nullable=False),
        pa.field("tokens_cached", pa.int64(), nullable=False),
        pa.field("tokens_out", pa.int64(), nullable=False),
        pa.field("nano_usd", pa.int64(), nullable=False),
        pa.field("latency_us", pa.int64(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
    ]
)
"""`error` is the class of the error, and `message` its text; both are empty if there was none.
`offset` is that of the first row of the call in `journal`."""

_MESSAGE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCharge:
    """One attempt of a paid call."""

    at_us: int
    run: int
    journal: str
    offset: int
    attempt: int
    noted: CallSpend
    latency_us: int
    error: str = ""
    message: str = ""

    def as_row(self) -> dict[str, object]:
        """The row of its journal."""
        row = {name: getattr(self, name) for name in ("at_us", "run", "journal", "offset")}
        spend = asdict(self.noted.spend)
        return (
            row
            | spend
            | {
                "attempt": self.attempt,
                "model": self.noted.model,
                "latency_us": self.latency_us,
                "request_id": self.noted.request_id,
                "error": self.error,
                "message": self.message[:_MESSAGE_CHARS_MAX],
            }
        )


def to_rows(charges: Sequence[CallCharge]) -> pa.RecordBatch:
    """Charges as rows of their journal."""
    return pa.RecordBatch.from_pylist([charge.as_row() for charge in charges], schema=SCHEMA)
