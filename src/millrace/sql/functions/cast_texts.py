"""The spellings of numbers and truth values that Spark reads in text, as patterns of the engine."""

from __future__ import annotations

from typing import Final

from millrace.sql.typed_sql import text_literal

# Java drops blanks and control characters around a number; some casts drop DEL too.
BLANK: Final = r"[\x00-\x20]*"
BLANK_OR_DELETE: Final = r"[\x00-\x20\x7f]*"
WHOLE: Final = r"[+-]?[0-9]+"
PLAIN_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
NUMBER: Final = PLAIN_NUMBER + r"(?:[eE][+-]?[0-9]{1,4})?"
_WORD: Final = r"([a-zA-Z]+|[01])"


def between(blank: str, pattern: str) -> str:
    """A pattern with blanks around it, as a text of the engine."""
    return text_literal(f"{blank}{pattern}{blank}")


def word_steps(text: str) -> str:
    """The branches of CASE for the words that mean true and false."""
    pattern = between(BLANK_OR_DELETE, _WORD)
    word = f"lower(regexp_extract({text}, {pattern}, 1))"
    whole = f"regexp_full_match({text}, {pattern})"
    return (
        f"WHEN {whole} AND {word} IN ('t', 'true', 'y', 'yes', '1') THEN true "
        f"WHEN {whole} AND {word} IN ('f', 'false', 'n', 'no', '0') THEN false"
    )
