"""Explains why a query failed: the value, its column and its file.

Invariant: no message shows SQL that the user did not write; that is logged at DEBUG.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final

from millrace.errors import OutOfMemory, TaskFailed

_LOG: Final = logging.getLogger(__name__)
_PREFIX: Final = re.compile(r"^(?:[A-Z]\w* )+Error: ")
_CALLED: Final = "Python exception occurred while executing the UDF: "
_REFUSED: Final = f"{_CALLED}ValueRefused: "
"""How DuckDB begins to tell the error of a vectorised function: of a value, if it refused one."""
_CAST: Final = re.compile(r"cannot cast '(?P<value>.*)' of (?P<column>.+) to [\w(), ]+$", re.DOTALL)
_NO_LOCAL_TIME: Final = (
    "Unable to convert TIMESTAMPTZ to local TIMESTAMP",
    "Timestamp microseconds out of range",
)
_NO_TEXT: Final = "could not convert blob to UTF8"
_OF_A_VALUE: Final = ("Conversion Error", "Out of Range Error", "Invalid Input Error")
"""How the engine begins to say it; rows on their way as Arrow bring the text without its class."""

_NO_MEMORY: Final = re.compile(r"^Out of Memory Error|\([\d.]+ \w+/[\d.]+ \w+ used\)")
"""How the engine says it: rows on their way as Arrow bring only how much was used of how much."""

Find = Callable[[str, str], str | None]
"""From a column and a value: the row and the file of that value."""


def query_failed(error: Exception, sql: str, finds: Iterable[Find] = ()) -> TaskFailed:
    """The error for a query that failed over some inputs."""
    _LOG.debug("a query failed: %s\n%s", error, sql)
    message = _PREFIX.sub("", str(error)).split("\n\nLINE ")[0].strip()
    message = message.replace(_REFUSED, "")
    if _NO_MEMORY.search(str(error)):
        return OutOfMemory(
            f"a query needs more memory than it may have\n  found: {message.splitlines()[0]}\n"
            "  to fix: raise Config(query_memory_bytes_max=...), or use more partitions"
        )
    if str(error).startswith(_OF_A_VALUE) and _CALLED not in message:
        if _NO_TEXT in message:
            return TaskFailed(
                "bytes that are no UTF-8 cannot become text here\n"
                "  found: cast(b AS string) of such bytes, which Spark passes on as a broken text\n"
                "  to fix: keep them with hex(b) or base64(b), or read them in their own encoding, "
                "as decode(b, 'ISO-8859-1') does"
            )
        if any(text in message for text in _NO_LOCAL_TIME):
            return TaskFailed(
                "a timestamp is too near the first or the last one to have a local time here\n"
                f"  found: {message}\n"
                "  to fix: replace it before, or calculate on Spark, with "
                "ws.from_spark(dataset.to_spark().select(...))"
            )
        failed_cast = _CAST.search(message)
        column, value = (
            (failed_cast["column"], failed_cast["value"]) if failed_cast is not None else ("", "")
        )
        locations = [location for find in finds if (location := find(column, value)) is not None]
        return TaskFailed(
            f"a value cannot be calculated with: {message}\n"
            f"  found: in {' or '.join(locations) or 'rows between two stages'}\n"
            "  to fix: correct the value, or replace it before, as in if(x = 'n/a', NULL, x)"
        )
    return TaskFailed(
        f"a query failed in a task\n  found: {message}\n"
        "  to fix: run it again; if it fails again, log at DEBUG to see the query and report both"
    )
