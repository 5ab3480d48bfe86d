"""Numbers and names as people write and read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Final

_STEP: Final = 1024
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_LETTERS_PER_SLIP: Final = 4
"""Names are near if they differ by at most one slip of the keyboard in so many letters."""
_LISTED_MAX: Final = 12


class PlainText(str):
    """Text that a notebook shows as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class HtmlText(str):
    """HTML that a notebook shows as a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


def human_bytes(count: float) -> str:
    """Bytes with a unit: 1536 is '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"


def human_seconds(value: float) -> str:
    """A length of time in its largest two units: 3725 is '1 h 02 min'."""
    if value < 1:
        return f"{value * 1000:,.0f} ms"
    if value < _MINUTE:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def counted(count: int, what: str) -> str:
    """A number of things: '1 map task', '2,000 map tasks'."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def is_whole(given: object, least: int, most: int) -> bool:
    """Whether something is a whole number within bounds."""
    return isinstance(given, Integral) and least <= int(given) <= most


def near_names(
    name: str, known: Iterable[str], *, count: int = 3, by_words: bool = False
) -> list[str]:
    """The known names that `name` is likely a slip for, nearest first; none if all are far.

    Names are near if they differ in case alone, in the order of two letters, or by one letter in
    four: `amuont` is near to `amount`, but `len` is not near to `ln`. With `by_words` a name is
    near as well if all words between its underscores are in the other: `sync_ms`, `sync`.
    """
    ranked = []
    for candidate in known:
        distance = _distance(name.lower(), candidate.lower())
        slips = max(len(name), len(candidate)) // _LETTERS_PER_SLIP
        turned = distance == 1 and sorted(name.lower()) == sorted(candidate.lower())
        if distance <= slips or turned:
            ranked.append((distance, candidate))
        elif by_words and _shares_words(name, candidate):
            ranked.append((len(name) + abs(len(name) - len(candidate)), candidate))
    return [candidate for _, candidate in sorted(ranked)[:count]]


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, by_words: bool = False) -> str:
    """What to do about an unknown name: the near ones if there are some, else `otherwise`."""
    near = near_names(name, known, by_words=by_words)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def listed(names: Iterable[str]) -> str:
    """Names for a message: all of a few, the first of many and how many more there are."""
    every = list(names)
    more = len(every) - _LISTED_MAX
    shown = ", ".join(every[:_LISTED_MAX]) or "none"
    return f"{shown} and {more:,} more" if more > 0 else shown


def _shares_words(name: str, other: str) -> bool:
    words, other_words = set(name.lower().split("_")), set(other.lower().split("_"))
    return words <= other_words or other_words <= words


def _distance(name: str, other: str) -> int:
    """How many letters are added, left out, changed or swapped with their neighbour."""
    before: Sequence[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(name, 1):
        current = [row]
        for column, theirs in enumerate(other, 1):
            step = min(last[column] + 1, current[-1] + 1, last[column - 1] + (letter != theirs))
            if row > 1 and column > 1 and letter == other[column - 2] and name[row - 2] == theirs:
                step = min(step, before[column - 2] + 1)
            current.append(step)
        before, last = last, current
    return last[-1]
