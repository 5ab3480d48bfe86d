"""Ways in which a function's result can depend on code and data: what programs are made of.

Each feature has files of a package `shop`, lines of the function that use them, and an edit that
changes the function's result. `{f}` in a text is where the function itself lives.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One way to depend on something."""

    name: str
    files: dict[str, str]
    """Texts of modules; "f" is the top of the module that the function is in."""
    use: str
    """Lines of the function, which appends to `out` what depends on `x`."""
    old: str
    new: str
    """The edit: a text that occurs once, and what stands there afterwards."""


def feature(name: str, use: str, edit: tuple[str, str], **files: str) -> Feature:
    texts = {key: textwrap.dedent(text).lstrip("\n") for key, text in files.items()}
    return Feature(
        name=name, files=texts, use=textwrap.dedent(use).strip("\n"), old=edit[0], new=edit[1]
    )
