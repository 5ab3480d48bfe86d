"""The answer where nothing can be proven."""

from __future__ import annotations


class Unrecognisable(Exception):
    """Why a function's results cannot be recognised. Never leaves Millrace."""
