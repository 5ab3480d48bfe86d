"""Names that users give: what cannot be one is refused where it is given. Pure.

Invariant: a name that was checked is a text without control characters, and not too long.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Final

from millrace.errors import UserError

NAME_LENGTH_MAX: Final = 512
NEAR_MAX: Final = 5
"""How many of the names that exist an error shows."""
_SHOWN_MAX: Final = 80
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def check_text(
    given: object,
    what: str,
    *,
    pattern: re.Pattern[str] | None = None,
    allowed: str = "text without control characters",
    length_max: int = NAME_LENGTH_MAX,
) -> str:
    """Refuse what cannot be a name.

    Args:
        given: by the user.
        what: what it is to name, as "a journal".
        pattern: which names there are; all texts without control characters by default.
        allowed: the same in words.
        length_max: how many characters a name has at most.
    """
    if not isinstance(given, str):
        found = f"a value of type {type(given).__name__}"
    elif not given:
        found = "an empty text"
    elif len(given) > length_max:
        found = f"{len(given)} characters"
    elif (control := _CONTROL.search(given)) is not None:
        found = f"the control character {control[0]!r}"
    elif pattern is not None and not pattern.fullmatch(given):
        found = "a character, or a part, that is not allowed"
    else:
        return given
    raise UserError(
        f"{shown(given)} cannot name {what}\n  found: {found}\n"
        f"  to fix: use {allowed}, 1 to {length_max} characters"
    )


def path_text(given: object) -> str:
    """A path as a text; what cannot be one is refused."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str) and given and not _CONTROL.search(given):
        return given
    raise UserError(
        f"{shown(given)} cannot be the path of a workspace\n"
        f"  found: {'a text' if isinstance(given, str) else f'a {type(given).__name__}'}\n"
        "  to fix: give a path as a text or a Path, without control characters"
    )


def existing(wanted: str, names: Iterable[str], none: str = "none") -> str:
    """The names that exist, in the words of an error: near ones first, and how many more."""
    known = list(dict.fromkeys(names))
    if not known:
        return none
    near = difflib.get_close_matches(wanted, known, n=NEAR_MAX, cutoff=0.5)
    few = list(dict.fromkeys([*near, *known]))[:NEAR_MAX]
    more = len(known) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")


def shown(value: object) -> str:
    """A value in an error, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
