"""The vectorised functions that SQL names, found by their names."""

from __future__ import annotations

from typing import Final

from millrace.sql.vectorised import letter_case
from millrace.sql.vectorised.vectorised_function import NAME, VECTORISED, VectorisedFunction

__all__ = ["VECTORISED", "called_functions"]

MODULES: Final = (letter_case,)
"""Imported for the table they fill."""


def called_functions(sql: str) -> list[VectorisedFunction]:
    """The functions that SQL calls, each once.

    A column may have such a name too; then the function is there and nobody calls it.
    """
    names = sorted(set(NAME.findall(sql)))
    return [VECTORISED[name] for name in names if name in VECTORISED]
