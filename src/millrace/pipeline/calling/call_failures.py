"""The errors by which a failure of a step travels inside a worker."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.errors import MillraceError
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.paid.call_errors import AnswerUnusable, NotAllowed

_TRACE_LINES_MAX: Final = 40


class Stopped(Exception):
    """No more calls are to be made in this batch."""


class QueryFailed(Exception):
    """A filter or a column could not be calculated for some row."""

    def __init__(self, step: str, offset: int, failure: Failure) -> None:
        super().__init__(failure.error)
        self.step, self.offset, self.failure = step, offset, failure


class MakingFailed(Exception):
    """The callable of a step could not be made."""

    def __init__(self, step: str, failure: Failure) -> None:
        super().__init__(failure.error)
        self.step, self.failure = step, failure


def failure_of(
    index: int, error: BaseException, attempts: int, *, is_final: bool = False
) -> Failure:
    """The failure of an error: its text, and its traceback from the user's code on."""
    own = error.__traceback__
    while own is not None and own.tb_next is not None and _is_ours(own.tb_frame.f_code.co_filename):
        own = own.tb_next
    text = _storable("".join(traceback.format_exception(type(error), error, own)))
    lines = [line for line in text.splitlines() if line.strip()]
    answer = error.answer if isinstance(error, AnswerUnusable) else None
    return Failure(
        place=index,
        error=_storable(f"{type(error).__name__}: {error}"),
        traceback="\n".join(lines[-_TRACE_LINES_MAX:]),
        attempts=attempts,
        kind=type(error).__name__,
        is_final=is_final,
        ends_step=isinstance(error, NotAllowed),
        answer=None if answer is None else _storable(answer),
    )


def _storable(text: str) -> str:
    """A text as journals can hold it: one of a file's name may have halves of surrogate pairs."""
    return text.encode(errors="backslashreplace").decode()


@contextmanager
def keeps_answer(unusable: AnswerUnusable) -> Iterator[None]:
    """An error of a repair keeps the answer that was to be repaired: it was paid for."""
    try:
        yield
    except MillraceError as error:
        if isinstance(error, AnswerUnusable) and error.answer is None:
            error.answer = unusable.answer
        raise
    except Exception as error:
        raise AnswerUnusable(
            f"{unusable}\n  found: repair= raised {type(error).__name__}: {error}\n"
            "  to fix: let it take such answers too, or raise mr.AnswerUnusable",
            answer=unusable.answer,
        ) from error


def _is_ours(path: str) -> bool:
    return "/millrace/pipeline/" in path or "/asyncio/" in path
