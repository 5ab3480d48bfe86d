r"""Java's regular expressions as those of RE2 and of Python, for patterns that mean the same there.

Invariant: a pattern is taken only if all its parts are known here. What Java reads otherwise than
RE2 is written out: `.` stops at five line ends, `\\s` has a vertical tab, `(?i)` folds ASCII only,
`$` stands before a last line end too. A pattern of other parts is left to Spark. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace.sql.vectorised.java_classes import (
    LINE_ENDS,
    PatternUnknown,
    Ranges,
    but,
    class_of,
    folded,
    halves_alone,
    is_pair,
    shorthand,
    written,
)

_REPEATS_MAX: Final = 1000
_QUANTIFIER: Final = re.compile(r"[*+?]|\{(\d{1,4})(,(\d{0,4}))?\}")
_GROUP: Final = re.compile(r"\((\?:|\?=|\?!|\?<[a-zA-Z][a-zA-Z0-9]*>|(?!\?))")
_LINE_END: Final = "[" + written(LINE_ENDS, python=True) + "]"
_END: Final = rf"(?:\Z|(?=\r\n\Z)|(?={_LINE_END}\Z)(?!(?<=\r)\n))"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPattern:
    """A pattern in both languages. `re2` is None if only Python has all its parts."""

    re2: str | None
    python: str
    groups: int
    may_be_empty: bool
    """Whether it can match no character at all."""
    has_end: bool
    """Whether it has `$`: then the form for RE2 holds for texts that end with no line end."""
    has_pairs: bool
    """Whether it has both cases of a letter, as `[sS]`, which RE2 may take for all its forms: then
    the form for RE2 holds for ASCII texts."""
    groups_repeat: bool
    """Whether a group may match several times, and so keeps only its last part."""


@dataclass(slots=True)
class _PatternPart:
    """A part of a pattern, with the least number of characters it matches."""

    re2: str
    python: str
    least: int
    groups: bool = False
    repeats: int = 1


def java_pattern(text: str) -> JavaPattern:
    """The pattern in RE2 and in Python; raises `PatternUnknown` for parts that are not known."""
    reader = _PatternReader(text)
    whole = reader.alternatives()
    if reader.at < len(text) or (
        reader.python_only and whole.least == 0 and not text.startswith("^")
    ):
        raise PatternUnknown(text[reader.at :])
    try:
        re.compile(whole.python)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternUnknown(text) from error
    return JavaPattern(
        re2=None if reader.python_only or whole.repeats > _REPEATS_MAX else whole.re2,
        python=whole.python,
        groups=reader.groups,
        may_be_empty=whole.least == 0,
        has_end=reader.has_end,
        has_pairs=reader.has_pairs,
        groups_repeat=reader.groups_repeat,
    )


class _PatternReader:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.groups = 0
        self.has_end = self.has_pairs = self.python_only = self.groups_repeat = False
        self.ignore_case = self.dot_all = False
        flags = re.match(r"\(\?([is]+)\)", text)
        if flags:
            self.at = flags.end()
            self.ignore_case, self.dot_all = "i" in flags[1], "s" in flags[1]

    def alternatives(self) -> _PatternPart:
        parts = [self._sequence()]
        while self.text[self.at : self.at + 1] == "|":
            self.at += 1
            parts.append(self._sequence())
        return _PatternPart(
            "|".join(part.re2 for part in parts),
            "|".join(part.python for part in parts),
            min(part.least for part in parts),
            any(part.groups for part in parts),
            max(part.repeats for part in parts),
        )

    def _sequence(self) -> _PatternPart:
        whole = _PatternPart("", "", 0)
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self._repeated(self._atom())
            whole.re2 += part.re2
            whole.python += part.python
            whole.least += part.least
            whole.groups |= part.groups
            whole.repeats = max(whole.repeats, part.repeats)
        return whole

    def _repeated(self, part: _PatternPart) -> _PatternPart:
        match = _QUANTIFIER.match(self.text, self.at)
        if match is None:
            if self.text[self.at : self.at + 1] == "{":
                raise PatternUnknown(self.text[self.at :])
            return part
        self.at = match.end()
        sign = match[0]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, 0))
        if match[1] is not None:
            low = int(match[1])
            high = low if match[2] is None else int(match[3]) if match[3] else None
        following = self.text[self.at : self.at + 1]
        if following == "?":
            sign += "?"
            self.at += 1
        if following == "+" or self.text[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise PatternUnknown(self.text[self.at :])
        if part.least == 0 and high != 1:
            raise PatternUnknown(part.python)
        if high is not None and high < low:
            raise PatternUnknown(sign)
        self.groups_repeat |= part.groups and high != 1
        repeats = part.repeats * max(low, high or 1)
        return _PatternPart(
            part.re2 + sign, part.python + sign, part.least * low, part.groups, max(repeats, 1)
        )

    def _atom(self) -> _PatternPart:
        sign = self.text[self.at]
        if sign == "(":
            return self._group()
        if sign == "[":
            ranges, self.at = class_of(self.text, self.at)
            return self._one_of(ranges)
        if sign == "\\":
            return self._escape()
        self.at += 1
        if sign == ".":
            return self._one_of([(0, 0x10FFFF)] if self.dot_all else but(LINE_ENDS))
        if sign == "^":
            return self._anchor(r"\A", r"\A")
        if sign == "$":
            self.has_end = True
            return self._anchor(r"\z", _END)
        if sign in "*+?{":
            raise PatternUnknown(self.text[self.at - 1 :])
        return self._one_of([(ord(sign), ord(sign))])

    def _one_of(self, ranges: Ranges) -> _PatternPart:
        if not ranges or halves_alone(ranges):
            raise PatternUnknown(self.text)
        chosen = folded(ranges) if self.ignore_case else ranges
        self.has_pairs |= is_pair(chosen)
        return _PatternPart(
            f"[{written(chosen, python=False)}]", f"[{written(chosen, python=True)}]", least=1
        )

    def _anchor(self, re2: str, python: str) -> _PatternPart:
        if _QUANTIFIER.match(self.text, self.at):
            raise PatternUnknown(self.text[self.at :])
        return _PatternPart(re2, python, 0)

    def _group(self) -> _PatternPart:
        opening = _GROUP.match(self.text, self.at)
        if opening is None:
            raise PatternUnknown(self.text[self.at :])
        self.at = opening.end()
        mark = opening[1]
        captures = not mark or mark.startswith("?<")
        if captures:
            self.groups += 1
        before = self.groups
        inner = self.alternatives()
        if self.text[self.at : self.at + 1] != ")":
            raise PatternUnknown(self.text)
        self.at += 1
        if mark in ("?=", "?!"):
            self.python_only = True
            if self.groups > before:
                raise PatternUnknown(self.text)
            return self._anchor("", f"({mark}{inner.python})")
        start = "(" if captures else "(?:"
        return _PatternPart(
            f"{start}{inner.re2})",
            f"{start}{inner.python})",
            inner.least,
            inner.groups or captures,
            inner.repeats,
        )

    def _escape(self) -> _PatternPart:
        sign = self.text[self.at + 1 : self.at + 2]
        if sign in ("A", "z"):
            self.at += 2
            return self._anchor(rf"\{sign}", r"\A" if sign == "A" else r"\Z")
        if sign == "Q":
            end = self.text.find(r"\E", self.at)
            inner = self.text[self.at + 2 : end if end >= 0 else len(self.text)]
            self.at = len(self.text) if end < 0 else end + 2
            if len(inner) != 1 and _QUANTIFIER.match(self.text, self.at):
                raise PatternUnknown(inner)
            parts = [self._one_of([(ord(char), ord(char))]) for char in inner]
            return _PatternPart(
                "".join(part.re2 for part in parts),
                "".join(part.python for part in parts),
                len(parts),
            )
        ranges, self.at = shorthand(self.text, self.at)
        return self._one_of(ranges)
