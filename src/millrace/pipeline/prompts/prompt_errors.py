"""Errors of calls that making them again does not mend."""

from __future__ import annotations

from millrace.errors import MillraceError


class QuestionRefused(MillraceError):
    """The provider will not answer this row's question, now or later."""
