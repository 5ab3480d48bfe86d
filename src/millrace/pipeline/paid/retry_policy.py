"""Which errors of a call are waits, which are tried again, and which are not. Pure."""

from __future__ import annotations

import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from millrace.pipeline.paid.call_errors import ProviderBusy

ErrorClasses = str | type[BaseException] | Sequence[str | type[BaseException]]
"""Classes of errors, or their names, as users give them."""
TOO_MANY: Final = 429
WAIT_S_MAX: Final = 86_400.0
"""No provider is waited for longer before it is asked again."""
_SERVER_ERRORS: Final = range(500, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The classes of errors, by name, of which a call is made again, or is not."""

    retry_on: tuple[str, ...] = ()
    """Only these are tried again; all, if there is none."""
    give_up_on: tuple[str, ...] = ()

    def is_final(self, error: BaseException) -> bool:
        """Whether no further attempt is to follow this error."""
        names = {kind.__name__ for kind in type(error).__mro__}
        if not names.isdisjoint(self.give_up_on):
            return True
        return bool(self.retry_on) and names.isdisjoint(self.retry_on)


def class_names(given: Sequence[object]) -> list[str] | None:
    """The names of classes of errors, given as classes or names; None if one is neither."""
    names = []
    for each in given:
        if isinstance(each, str) and each:
            names.append(each)
        elif isinstance(each, type) and issubclass(each, BaseException):
            names.append(each.__name__)
        else:
            return None
    return names


def refusal_s(error: BaseException, now: datetime | None = None) -> float | None:
    """How long to wait if an error says that the provider is busy; 0 if it does not say how long.

    Known are `ProviderBusy` and the errors of HTTP clients, which have a response or a status.
    """
    if isinstance(error, ProviderBusy):
        return _in_bounds(error.retry_after or 0.0)
    response: Any = getattr(error, "response", None)
    status = _status(error) or _status(response)
    if status != TOO_MANY and status not in _SERVER_ERRORS:
        return None
    headers = getattr(response, "headers", None) or getattr(error, "headers", None)
    return _retry_after_s(headers, now) if isinstance(headers, Mapping) or headers else 0.0


def _status(source: object) -> int | None:
    names = ["status_code", "status"]
    if isinstance(source, urllib.error.HTTPError):
        names = ["code"]
    for name in names:
        value = getattr(source, name, None)
        if type(value) is int:
            return value
    return None


def _retry_after_s(headers: Any, now: datetime | None) -> float:  # noqa: ANN401 - of any client
    """The seconds that `Retry-After` names, as a number or a date; 0 if it names none."""
    get = getattr(headers, "get", None)
    if get is None:
        return 0.0
    in_ms, text = get("retry-after-ms"), get("retry-after") or get("Retry-After")
    try:
        if in_ms is not None:
            return _in_bounds(float(in_ms) / 1000)
        return _in_bounds(float(text)) if text is not None else 0.0
    except (TypeError, ValueError):
        pass
    try:
        at = parsedate_to_datetime(str(text))
    except (TypeError, ValueError):
        return 0.0
    moment = now or datetime.now(UTC)
    return _in_bounds((at.replace(tzinfo=at.tzinfo or UTC) - moment).total_seconds())


def _in_bounds(wait_s: float) -> float:
    """A wait that a clock can count: "inf" and 1e400 are numbers, too."""
    return min(max(0.0, wait_s), WAIT_S_MAX)
