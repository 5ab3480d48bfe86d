"""The mode in which expressions are read and computed, as a Spark session's settings ask for it.

Invariant: a plan is built in one mode. `spark/session_settings.py` compares it with the session's
mode when the plan runs, so no part of a query follows other settings than the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlMode:
    """What of a session's settings changes answers.

    `on_spark`, `text_on_spark` and `files_on_spark` name the first setting because of which Spark
    itself has to compute expressions, read SQL text, or read files; None if there is none.
    """

    ansi: bool = True
    case_sensitive: bool = False
    on_spark: str | None = None
    text_on_spark: str | None = None
    files_on_spark: str | None = None

    def __str__(self) -> str:
        parts = [f"spark.sql.ansi.enabled = {str(self.ansi).lower()}"]
        parts += ["spark.sql.caseSensitive = true"] if self.case_sensitive else []
        given = (self.on_spark, self.text_on_spark, self.files_on_spark)
        return ", ".join([*parts, *dict.fromkeys(one for one in given if one is not None)])


DEFAULT: Final = SqlMode()
_MODE: Final[ContextVar[SqlMode]] = ContextVar("sql_mode", default=DEFAULT)


def current_mode() -> SqlMode:
    """The mode of the call that is being built."""
    return _MODE.get()


@contextmanager
def in_mode(mode: SqlMode) -> Iterator[None]:
    """Build what follows in a mode."""
    before = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(before)


@contextmanager
def with_ansi(*, ansi: bool) -> Iterator[None]:
    """Build what follows with or without errors for what does not fit."""
    with in_mode(replace(_MODE.get(), ansi=ansi)):
        yield


def in_ansi_mode() -> bool:
    """Whether what does not fit is an error, as with spark.sql.ansi.enabled.

    Where it is not, a part that can fail is left to Spark, unless it is written so that it gives
    Spark's other value.
    """
    return _MODE.get().ansi


def folded(name: str) -> str:
    """A name as it is compared: in lower case, unless the session tells cases apart."""
    return name if _MODE.get().case_sensitive else name.lower()
