"""The inputs of a task: rows as a stream, or files that the engine reads itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.scan.engine_parquet import NativeRows


def _not_native() -> NativeRows | None:
    return None


def _not_known(_column: str, _value: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One input. Nothing is opened before `stream` or `native` is called, and only one of them."""

    stream: Callable[[], pa.RecordBatchReader]
    native: Callable[[], NativeRows | None] = _not_native
    find: Callable[[str, str], str | None] = _not_known
    """From a column and a value: the row and the file of that value, if it comes from one."""
