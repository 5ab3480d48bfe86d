"""What a client may do with each call to a broker. Pure.

A call may be repeated when asking twice does what asking once does. Its client asks again after a
lost answer. The other calls are tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millrace.journal.core.values import Anything, Publish

Method = TypeVar("Method", bound=Callable[..., Any])
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRule:
    """Whether a call writes, whether it waits at the owner, and when it may be repeated."""

    writes: bool = False
    waits: bool = False
    is_repeatable: Callable[[Arguments], bool]


def always(_: Arguments) -> bool:
    """The call may be repeated."""
    return True


def never(_: Arguments) -> bool:
    """A repeated call would do more."""
    return False


def if_numbered(arguments: Arguments) -> bool:
    """A producer and a sequence tell a repeated publish from a new one."""
    request: Publish | None = arguments.get("request")
    if request is not None:
        return request.producer is not None and request.sequence is not None
    return arguments["producer"] is not None and arguments["sequence"] is not None


def if_expected(arguments: Arguments) -> bool:
    """An expected offset tells a repeated commit from a new one."""
    return not isinstance(arguments["expected"], Anything)


CALL_RULES: Final[dict[str, CallRule]] = {}
"""By the name of the call: every call that goes to the owner of the journals has one."""


def _ruled(rule: CallRule) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        CALL_RULES[method.__name__] = rule
        return method

    return mark


reads: Final = _ruled(CallRule(is_repeatable=always))
"""Marks a call that changes nothing."""
waits: Final = _ruled(CallRule(waits=True, is_repeatable=always))
"""Marks a call that changes nothing, and whose answer may take its `timeout_s`."""


def writes(is_repeatable: Callable[[Arguments], bool]) -> Callable[[Method], Method]:
    """Mark a call that may change something."""
    return _ruled(CallRule(writes=True, is_repeatable=is_repeatable))
