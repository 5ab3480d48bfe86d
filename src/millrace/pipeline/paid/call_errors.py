"""Errors that functions raise about paid calls, told apart by their workers. Pure."""

from __future__ import annotations

from millrace.errors import MillraceError


class ProviderBusy(MillraceError):
    """A provider refused a call for now: it is busy, or a limit is reached. Functions raise it.

    The call waits and is made again: that is no failed call, and no call of the budget. Errors of
    HTTP clients with status 429 or 5xx are taken for this as they are.

    Example:
        >>> raise mr.ProviderBusy("the provider is busy", retry_after=2.5)
        Traceback (most recent call last):
        millrace.pipeline.paid.call_errors.ProviderBusy: the provider is busy
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds to wait, if the provider said how many."""


class NotAllowed(MillraceError):
    """No call can succeed: the key, the quota or the model is refused. Functions raise it.

    The step ends, whatever its `on_error` says, and what was paid for is published. The next run
    goes on there.

    Example:
        >>> raise mr.NotAllowed("the account has no credit left")
        Traceback (most recent call last):
        millrace.pipeline.paid.call_errors.NotAllowed: the account has no credit left
    """


class AnswerUnusable(MillraceError):
    """An answer was paid for and cannot be used. Functions raise it.

    Example:
        >>> raise mr.AnswerUnusable("no JSON", answer="I am sorry, I cannot do that.")
        Traceback (most recent call last):
        millrace.pipeline.paid.call_errors.AnswerUnusable: no JSON
    """

    def __init__(self, message: str = "", *, answer: str | None = None) -> None:
        super().__init__(message)
        self.answer = answer
        """What was paid for. It is kept with the dead letter of the row."""
