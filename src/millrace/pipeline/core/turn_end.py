"""Why a worker stopped working on a unit. Pure."""

from __future__ import annotations

from enum import StrEnum


class TurnEnd(StrEnum):
    """Why a turn of a worker on a unit ended."""

    OVER = "over"
    """Its time was over, there were no more rows, or the worker is to stop."""
    LOST = "lost"
    """Another worker has the unit."""
    FAILED = "failed"
    HELD = "held"
    SPENT = "spent"
    STUCK = "stuck"
    """Calls never returned: this process should make no more."""
