"""Classes of characters in Java's regular expressions, as ranges of code points. Pure."""

from __future__ import annotations

import re
from typing import Final

Ranges = list[tuple[int, int]]
"""First and last characters."""


class PatternUnknown(Exception):
    """A pattern has a part that is not known to mean the same elsewhere."""


_LAST: Final = 0x10FFFF
LINE_ENDS: Final[Ranges] = [(10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029)]
_DIGITS: Final[Ranges] = [(48, 57)]
_UPPER: Final[Ranges] = [(65, 90)]
_LOWER: Final[Ranges] = [(97, 122)]
_SPACE: Final[Ranges] = [(9, 13), (32, 32)]
_PUNCTUATION: Final[Ranges] = [(33, 47), (58, 64), (91, 96), (123, 126)]
_SHORTHANDS: Final[dict[str, Ranges]] = {
    "d": _DIGITS,
    "w": [*_DIGITS, *_UPPER, (95, 95), *_LOWER],
    "s": _SPACE,
}
_POSIX: Final[dict[str, Ranges]] = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "Alpha": [*_UPPER, *_LOWER],
    "Digit": _DIGITS,
    "Alnum": [*_DIGITS, *_UPPER, *_LOWER],
    "Punct": _PUNCTUATION,
    "Space": _SPACE,
    "ASCII": [(0, 127)],
    "Blank": [(9, 9), (32, 32)],
    "XDigit": [*_DIGITS, (65, 70), (97, 102)],
    "Cntrl": [(0, 31), (127, 127)],
}
_CONTROLS: Final = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_CODE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\})")
_NAMED: Final = re.compile(r"\\([pP])\{(\w+)\}")


def but(ranges: Ranges) -> Ranges:
    """All characters but these."""
    out, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            out.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*out, (begin, _LAST)] if begin <= _LAST else out


def halves_alone(ranges: Ranges) -> bool:
    """Whether a half of a pair of 16 bits is in the class, and some pair is not.

    Java tries a pattern between the halves too, and would take the second half there.
    """
    rest = but(ranges)
    halves = any(low <= 0xDFFF and high >= 0xD800 for low, high in ranges)  # noqa: PLR2004
    return halves and any(high > 0xFFFF for _, high in rest)  # noqa: PLR2004


def is_pair(ranges: Ranges) -> bool:
    """Whether the class has a letter of ASCII in both cases, and nothing else."""
    codes = {low for low, high in ranges} | {high for low, high in ranges}
    return (
        all(low == high for low, high in ranges)
        and len(codes) == 2  # noqa: PLR2004
        and len({chr(code).lower() for code in codes}) == 1
    )


def folded(ranges: Ranges) -> Ranges:
    """The same with both cases of each ASCII letter."""
    out = list(ranges)
    for letter in range(26):
        for base, other in ((65, 97), (97, 65)):
            if any(low <= base + letter <= high for low, high in ranges):
                out.append((other + letter, other + letter))
    return out


def shorthand(text: str, at: int) -> tuple[Ranges, int]:
    """What an escape stands for, and the position behind it."""
    sign = text[at + 1 : at + 2]
    if sign.lower() in _SHORTHANDS:
        ranges = _SHORTHANDS[sign.lower()]
        return (ranges if sign.islower() else but(ranges)), at + 2
    named = _NAMED.match(text, at)
    if named and named[2] in _POSIX:
        ranges = _POSIX[named[2]]
        return (ranges if named[1] == "p" else but(ranges)), named.end()
    code, end = _escaped(text, at)
    return [(code, code)], end


def _escaped(text: str, at: int) -> tuple[int, int]:
    sign = text[at + 1 : at + 2]
    number = _CODE.match(text, at)
    if number:
        code = int(number[1] or number[2] or number[3], 16)
        if code > _LAST or 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - halves of pairs
            raise PatternUnknown(text)
        return code, number.end()
    if sign in _CONTROLS:
        return _CONTROLS[sign], at + 2
    if not sign or sign.isalnum() or not sign.isascii():
        raise PatternUnknown(text[at:])
    return ord(sign), at + 2


def class_of(text: str, at: int) -> tuple[Ranges, int]:
    """The characters of `[...]`, and the position behind it."""
    at += 1
    negated = text[at : at + 1] == "^"
    at += negated
    ranges: Ranges = []
    start = at
    while text[at : at + 1] != "]" or at == start:
        if at >= len(text) or text[at] in "[]" or text.startswith("&&", at):
            raise PatternUnknown(text)
        if text[at] == "\\":
            several, at = shorthand(text, at)
            if len(several) > 1 or several[0][0] != several[0][1]:
                ranges += several
                if text[at : at + 1] == "-" and text[at + 1 : at + 2] != "]":
                    raise PatternUnknown(text)
                continue
            low = several[0][0]
        else:
            low = ord(text[at])
            at += 1
        high = low
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in ("]", ""):
            high, at = _upper_bound(text, at + 1)
        if high < low:
            raise PatternUnknown(text)
        ranges.append((low, high))
    return (but(ranges) if negated else ranges), at + 1


def _upper_bound(text: str, at: int) -> tuple[int, int]:
    if text[at] == "\\":
        return _escaped(text, at)
    if text[at] in "[&-":
        raise PatternUnknown(text)
    return ord(text[at]), at + 1


def written(ranges: Ranges, *, python: bool) -> str:
    """The inside of a class for RE2, or for Python."""
    return "".join(
        _char(low, python) + (f"-{_char(high, python)}" if high > low else "")
        for low, high in ranges
    )


def _char(code: int, python: bool) -> str:  # noqa: FBT001
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\U{code:08x}" if python else f"\\x{{{code:X}}}"
