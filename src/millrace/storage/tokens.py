"""Checks tokens, wherever one is read: environment, file, option, or another process.

Invariant: no server and no client works with an empty or a short token.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import UserError

TOKEN_CHARACTERS_MIN: Final = 16


def checked_token(text: str, *, where: str) -> str:
    """A token without the spaces around it; `where` is the place it was read from."""
    token = text.strip()
    if not token:
        problem = "nothing but spaces" if text else "nothing"
    elif len(token) < TOKEN_CHARACTERS_MIN:
        problem = f"{len(token)} characters, and {TOKEN_CHARACTERS_MIN} are the fewest"
    elif not (token.isascii() and token.isprintable()):
        problem = "characters that are not printable ASCII"
    else:
        return token
    raise UserError(
        f"{where} is no token\n  found: {problem}\n"
        "  to fix: put a long random text there, as from `openssl rand -hex 32`, or take it away "
        "for a\n  token that is made with the workspace"
    )
