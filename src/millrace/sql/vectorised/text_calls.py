"""Functions of text that the engine lacks, each with Spark's own steps.

Python runs once for each distinct value of a call, and only for values that the engine cannot do.
"""

from __future__ import annotations

import unicodedata
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import per_value

_SOUNDS: Final = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))
_SOUND_SIZE: Final = 4
_DOUBLED_MAX: Final = 9


@vector_function("spark_reverse", ("VARCHAR",), "VARCHAR")
def _reverse(texts: pa.Array) -> pa.Array:
    return pc.utf8_reverse(texts)


@vector_function("spark_reverse_bytes", ("BLOB",), "BLOB")
def _reverse_bytes(values: pa.Array) -> pa.Array:
    return per_value(values, call=lambda value: value[::-1], kind=pa.binary())


@vector_function("spark_soundex", ("VARCHAR",), "VARCHAR")
def _soundex(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=soundex)


def soundex(text: str) -> str:
    """The sound of a word: its first letter and three digits."""
    capitals = "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text)
    if capitals[:1] not in _SOUNDS or not capitals:
        return text
    code, last = capitals[0], _SOUNDS[capitals[0]]
    for letter in capitals[1:]:
        sound = _SOUNDS.get(letter)
        if sound is None:
            last = "0"
        elif sound != "7":
            if sound not in ("0", last):
                code += sound
                if len(code) == _SOUND_SIZE:
                    break
            last = sound
    return code.ljust(_SOUND_SIZE, "0")


@vector_function("spark_levenshtein", ("VARCHAR", "VARCHAR"), "INTEGER")
def _levenshtein(left: pa.Array, right: pa.Array) -> pa.Array:
    return per_value(left, right, call=levenshtein, kind=pa.int32())


def levenshtein(left: str, right: str) -> int:
    """How many characters to insert, drop or change."""
    row = list(range(len(right) + 1))
    for number, letter in enumerate(left, 1):
        before, row[0] = row[0], number
        for column, other in enumerate(right, 1):
            changed = before + (letter != other)
            before = row[column]
            row[column] = min(changed, before + 1, row[column - 1] + 1)
    return row[-1]


@vector_function("spark_luhn_check", ("VARCHAR",), "BOOLEAN")
def _luhn_check(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=luhn_check, kind=pa.bool_())


def luhn_check(text: str) -> bool:
    """Whether the last digit of a number fits the others."""
    if not text.isdecimal() or max(text) > "\uffff":
        return False
    total = 0
    for number, digit in enumerate(reversed(text)):
        value = unicodedata.digit(digit) << (number % 2)
        total += value - 9 if value > _DOUBLED_MAX else value
    return total % 10 == 0


@vector_function("spark_substring_index", ("VARCHAR", "VARCHAR", "INTEGER"), "VARCHAR")
def _substring_index(texts: pa.Array, delimiters: pa.Array, counts: pa.Array) -> pa.Array:
    return per_value(texts, delimiters, counts, call=substring_index)


def substring_index(text: str, delimiter: str, count: int) -> str:
    """What is before the n-th delimiter, or behind it from the end; delimiters may overlap."""
    if not delimiter or not count:
        return ""
    at = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):
        if count > 0:
            at = text.find(delimiter, at + 1)
        else:
            at = text.rfind(delimiter, 0, at - 1 + len(delimiter)) if at > 0 else -1
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(delimiter) :]


@vector_function("spark_mask", ("VARCHAR", "VARCHAR", "VARCHAR", "VARCHAR", "VARCHAR"), "VARCHAR")
def _mask(texts: pa.Array, *signs: pa.Array) -> pa.Array:
    """Empty signs leave characters as they are."""
    return per_value(texts, *signs, call=mask)


def mask(text: str, upper: str, lower: str, digit: str, other: str) -> str:
    """Signs for capital letters, small letters, digits and other characters."""
    signs = {"Lu": upper, "Ll": lower, "Nd": digit}
    return "".join(signs.get(unicodedata.category(char), other) or char for char in text)
