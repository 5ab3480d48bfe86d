"""Java's date patterns as SQL: to write a time with one, and to read text with one.

Invariant: only letters whose text was shown equal to Spark's are known; any other pattern is left
to Spark. Text is read strictly: every field has its digits, and nothing follows the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace.sql.typed_sql import NotNative, failure, text_literal

_TOKENS: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z'])")
_RESERVED: Final = frozenset("[]{}#")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_FRACTION_DIGITS_MAX: Final = 9
_MICRO_DIGITS: Final = 6
_YEAR_MAX: Final = 290_307


@dataclass(frozen=True, slots=True)
class PatternToken:
    """A run of one letter, or a text that stands for itself if `letter` is empty."""

    letter: str
    text: str

    @property
    def width(self) -> int:
        """How often the letter stands there."""
        return len(self.text)


def _not_known(pattern: str) -> NotNative:
    return NotNative(
        "the engine does not know this date pattern",
        found=pattern,
        fix="Spark computes it; or use letters of yyyy, MM, MMM, dd, HH, hh, a, mm, ss, SSS",
    )


def pattern_tokens(pattern: str) -> list[PatternToken]:
    """The letters and texts of a pattern."""
    tokens, end = [], 0
    for match in _TOKENS.finditer(pattern):
        if match.start() != end:
            raise _not_known(pattern)
        end = match.end()
        if match[2]:
            tokens.append(PatternToken(match[2], match[0]))
            continue
        text = match[3] or match[1].replace("''", "'") or "'"
        if match[3] in _RESERVED:
            raise _not_known(pattern)
        tokens.append(PatternToken("", text))
    if end != len(pattern) or not tokens:
        raise _not_known(pattern)
    return tokens


_WRITTEN: Final = {
    "yyyy": "spark_year_text(year({t}))",
    "yy": "lpad(CAST(abs(year({t})) % 100 AS VARCHAR), 2, '0')",
    "y": "CAST(year({t}) AS VARCHAR)",
    **dict.fromkeys(("M", "L"), "strftime({t}, '%-m')"),
    **dict.fromkeys(("MM", "LL"), "strftime({t}, '%m')"),
    **dict.fromkeys(("MMM", "LLL"), "strftime({t}, '%b')"),
    **dict.fromkeys(("MMMM", "LLLL"), "strftime({t}, '%B')"),
    "d": "strftime({t}, '%-d')",
    "dd": "strftime({t}, '%d')",
    "D": "CAST(dayofyear({t}) AS VARCHAR)",
    "DDD": "strftime({t}, '%j')",
    **dict.fromkeys(("E", "EE", "EEE"), "strftime({t}, '%a')"),
    "EEEE": "strftime({t}, '%A')",
    **dict.fromkeys(("Q", "q"), "CAST(quarter({t}) AS VARCHAR)"),
    **dict.fromkeys(("QQ", "qq"), "('0' || quarter({t}))"),
    **dict.fromkeys(("QQQ", "qqq"), "('Q' || quarter({t}))"),
    "a": "CASE WHEN hour({t}) < 12 THEN 'AM' ELSE 'PM' END",
    "H": "CAST(hour({t}) AS VARCHAR)",
    "HH": "strftime({t}, '%H')",
    "h": "strftime({t}, '%-I')",
    "hh": "strftime({t}, '%I')",
    "K": "CAST(hour({t}) % 12 AS VARCHAR)",
    "KK": "lpad(CAST(hour({t}) % 12 AS VARCHAR), 2, '0')",
    "k": "CAST((hour({t}) + 23) % 24 + 1 AS VARCHAR)",
    "kk": "lpad(CAST((hour({t}) + 23) % 24 + 1 AS VARCHAR), 2, '0')",
    "m": "CAST(minute({t}) AS VARCHAR)",
    "mm": "strftime({t}, '%M')",
    "s": "CAST(second({t}) AS VARCHAR)",
    "ss": "strftime({t}, '%S')",
}
_OFFSETS_WRITTEN: Final = {
    "XXX": ("':'", "'Z'"),
    "XX": ("''", "'Z'"),
    "xxx": ("':'", "'+00:00'"),
    "xx": ("''", "'+0000'"),
    "Z": ("''", "'+0000'"),
    "ZZ": ("''", "'+0000'"),
    "ZZZ": ("''", "'+0000'"),
}


def written(pattern: str, instant: str) -> str:
    """SQL for the text of a timestamp, in the session's time zone."""
    parts = [_written_token(token, pattern) for token in pattern_tokens(pattern)]
    body = " || ".join(parts)
    return (
        f"list_transform([{instant}], lambda wi: list_transform([CAST(wi AS TIMESTAMP)], "
        f"lambda wt: {body})[1])[1]"
    )


def _written_token(token: PatternToken, pattern: str) -> str:
    if not token.letter:
        return text_literal(token.text)
    if token.letter == "S" and token.width <= _FRACTION_DIGITS_MAX:
        zeros = max(0, token.width - _MICRO_DIGITS)
        return f"(strftime(wt, '%f')[1:{min(token.width, _MICRO_DIGITS)}] || '{'0' * zeros}')"
    if token.text in _OFFSETS_WRITTEN:
        between, zero = _OFFSETS_WRITTEN[token.text]
        minutes = "((epoch_us(wt) - epoch_us(wi)) // 60000000)"
        clock = (
            f"CASE WHEN {minutes} < 0 THEN '-' ELSE '+' END "
            f"|| lpad(CAST(abs({minutes}) // 60 AS VARCHAR), 2, '0') || {between} "
            f"|| lpad(CAST(abs({minutes}) % 60 AS VARCHAR), 2, '0')"
        )
        return f"CASE WHEN epoch_us(wt) = epoch_us(wi) THEN {zero} ELSE {clock} END"
    if token.text not in _WRITTEN:
        raise _not_known(pattern)
    return "(" + _WRITTEN[token.text].format(t="wt") + ")"


_NUMBER: Final = "([0-9]{1,18})"
_TWO: Final = "([0-9]{2})"
_NAMES: Final = "|".join(_MONTHS)
_SHORT_NAMES: Final = "|".join(name[:3] for name in _MONTHS)
_READ: Final = {
    "yyyy": ("year", r"([0-9]{4}|\+[0-9]{5,18}|-[0-9]{4,18})"),
    "yy": ("short_year", _TWO),
    **dict.fromkeys(("M", "L"), ("month", _NUMBER)),
    **dict.fromkeys(("MM", "LL"), ("month", _TWO)),
    **dict.fromkeys(("MMM", "LLL"), ("month_name", f"((?i){_SHORT_NAMES})")),
    **dict.fromkeys(("MMMM", "LLLL"), ("month_name", f"((?i){_NAMES})")),
    "d": ("day", _NUMBER),
    "dd": ("day", _TWO),
    "H": ("hour", _NUMBER),
    "HH": ("hour", _TWO),
    "h": ("hour12", _NUMBER),
    "hh": ("hour12", _TWO),
    "a": ("half", "((?i)am|pm)"),
    "m": ("minute", _NUMBER),
    "mm": ("minute", _TWO),
    "s": ("second", _NUMBER),
    "ss": ("second", _TWO),
    "XXX": ("zone", r"([+-][0-9]{2}:[0-9]{2}|[zZ])"),
}
_OF_VARYING_WIDTH: Final = (_NUMBER,)


def _read_fields(pattern: str) -> Iterator[tuple[str, str]]:
    """For each token the field that it reads, or none, and the text that it takes."""
    tokens = pattern_tokens(pattern)
    for number, token in enumerate(tokens):
        after = tokens[number + 1] if number + 1 < len(tokens) else PatternToken("", " ")
        if not token.letter:
            letters = any(char.isalpha() for char in token.text)
            yield "", ("(?i:" if letters else "(?:") + _escaped(token.text) + ")"
        elif token.letter == "S" and token.width <= _FRACTION_DIGITS_MAX and not after.letter:
            yield "fraction", f"([0-9]{{1,{token.width}}})"
        elif token.text in _READ:
            field, text = _READ[token.text]
            if after.text in _READ and text in _OF_VARYING_WIDTH:
                raise _not_known(pattern)
            yield field, text
        else:
            raise _not_known(pattern)


def _escaped(text: str) -> str:
    if not text.isascii():
        return text
    return "".join(char if char.isalnum() or char in " _" else f"\\{char}" for char in text)


def read_pattern(pattern: str, text: str) -> str:
    """SQL for the instant that a text names; null if the text is not of the pattern."""
    parts = list(_read_fields(pattern))
    names = [field for field, _ in parts if field]
    if len(set(names)) < len(names) or not names or {"hour", "hour12"} <= set(names):
        raise _not_known(pattern)
    if ("half" in names) != ("hour12" in names) or {"month", "month_name"} <= set(names):
        raise _not_known(pattern)
    if "short_year" in names and "year" in names:
        raise _not_known(pattern)
    regex = "^" + "".join(taken for _, taken in parts) + "$"
    listed = ", ".join(f"'{name}'" for name in names)
    local = _local_time(set(names), names[0])
    if "zone" in names:
        value = f"spark_instant_at(upper(pr.zone), {local})"
    else:
        value = f"spark_instant({local})"
    return (
        f"list_transform([regexp_extract({text}, {text_literal(regex)}, [{listed}])], "
        f"lambda pr: {value})[1]"
    )


def _local_time(names: set[str], sure: str) -> str:
    def number(name: str, default: int) -> str:
        return f"TRY_CAST(pr.{name} AS BIGINT)" if name in names else str(default)

    year = "(2000 + TRY_CAST(pr.short_year AS BIGINT))"
    year = year if "short_year" in names else number("year", 1970)
    month = number("month", 1)
    if "month_name" in names:
        months = ", ".join(f"'{name[:3].lower()}'" for name in _MONTHS)
        month = f"list_position([{months}], lower(pr.month_name[1:3]))"
    hour = number("hour", 0)
    checks = [f"pr.{sure} = ''", f"{hour} > 23"]
    if "hour12" in names:
        half = number("hour12", 12)
        checks += [f"{half} < 1", f"{half} > 12"]
        hour = f"({half} % 12 + CASE WHEN lower(pr.half) = 'pm' THEN 12 ELSE 0 END)"
        checks[1] = "false"
    minute, second = number("minute", 0), number("second", 0)
    checks += [f"{minute} > 59", f"{second} > 59"]
    fraction = "CAST(rpad(pr.fraction[1:6], 6, '0') AS BIGINT)" if "fraction" in names else "0"
    micros = f"(({hour} * 60 + {minute}) * 60 + {second}) * 1000000 + {fraction}"
    day = f"make_date({year}, {month}, {number('day', 1)})"
    beyond = failure("a year is beyond those of a timestamp")
    return (
        f"CASE WHEN {' OR '.join(checks)} THEN NULL WHEN abs({year}) > {_YEAR_MAX} THEN {beyond} "
        f"ELSE TRY(CAST({day} AS TIMESTAMP) + to_microseconds({micros})) END"
    )
