"""Names that users give: what cannot be one is refused where it is given. Pure.

Invariant: a name that was checked is a text without control characters, and not too long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from millrace.errors import UserError
from millrace.text import near_names

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
        problem = f"a value of type {type(given).__name__}"
    elif not given:
        problem = "an empty text"
    elif len(given) > length_max:
        problem = f"{len(given)} characters"
    elif (control := _CONTROL.search(given)) is not None:
        problem = f"the control character {control[0]!r}"
    elif pattern is not None and not pattern.fullmatch(given):
        problem = "a character, or a part, that is not allowed"
    else:
        return given
    raise UserError(
        f"{shown(given)} cannot name {what}\n  found: {problem}\n"
        f"  to fix: use {allowed}, 1 to {length_max} characters"
    )


def path_text(given: object, call: str) -> str:
    """A path that a user gave to a call, as a text; what cannot be one is refused."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if isinstance(text, str) and text.strip() and not _CONTROL.search(text):
        return text
    raise UserError(
        f"{call} needs a path\n  found: {shown(given)}\n"
        "  to fix: give the path of a file or folder, as a text or a Path, without control "
        "characters"
    )


def existing(name: str, names: Iterable[str], none: str = "none") -> str:
    """The names that exist, in the words of an error: near ones first, and how many more."""
    known = list(dict.fromkeys(names))
    if not known:
        return none
    near = near_names(name, known, count=NEAR_MAX)
    few = list(dict.fromkeys([*near, *known]))[:NEAR_MAX]
    more = len(known) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")


def shown(value: object) -> str:
    """A value in an error, not too long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
