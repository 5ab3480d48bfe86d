"""Dead letters: rows that a step's function refused, with the error and the whole row. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("run", pa.int64(), nullable=False),
        pa.field("journal", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
        pa.field("row_json", pa.string(), nullable=False),
        pa.field("row_arrow", pa.binary(), nullable=False),
    ]
)
"""`row_arrow` is the row as an Arrow IPC stream, `row_json` the same for people to read."""


_KIND: Final = re.compile(r"[^\W\d]\w*(?=: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One refused row and its error."""

    at_us: int
    run: int
    journal: str
    offset: int
    key: str
    error: str
    traceback: str
    row: pa.RecordBatch


def error_text(kind: str, error: str) -> str:
    """The text of an error as letters have it: it begins with the class of the error."""
    return error if not kind or kind_of(error) == kind else f"{kind}: {error}"


def kind_of(error: str) -> str:
    """The class of the error of a letter; empty if its text names none."""
    found = _KIND.match(error)
    return found[0] if found else ""


def to_rows(letters: Sequence[Letter]) -> pa.RecordBatch:
    """Letters as rows of their journal."""
    plain = [name for name in SCHEMA.names if not name.startswith("row_")]
    rows = [
        {name: getattr(letter, name) for name in plain}
        | {"row_json": _as_json(letter.row), "row_arrow": as_arrow(letter.row)}
        for letter in letters
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def as_arrow(row: pa.RecordBatch) -> bytes:
    """A row as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    return bytes(sink.getvalue())


def from_arrow(data: bytes) -> pa.Table:
    """The row of a letter."""
    return pa.ipc.open_stream(data).read_all()


def _as_json(row: pa.RecordBatch) -> str:
    return json_of(row.to_pylist()[0])


def json_of(row: dict[str, Any]) -> str:
    """A row as JSON for people to read."""
    return json.dumps(row, default=_in_words, ensure_ascii=False)


def _in_words(value: Any) -> str:  # noqa: ANN401 - anything that Arrow gives for a value
    return value.hex() if isinstance(value, bytes) else str(value)
