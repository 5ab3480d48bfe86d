"""The error for a function that has no identity."""

from __future__ import annotations


class Unrecognisable(Exception):
    """Why a function's results cannot be recognised. Users see its text as a reason only."""
