"""Engines: classes that take rows by `submit` and give their results by `poll`, such as vLLM's.

Invariant: the call that gets an engine refuses one that does not fit, before anything runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from millrace.errors import UserError
from millrace.pipeline.core.job_model import Calling, StepOptions
from millrace.plan.nodes.map_batches import name_of

_METHODS: Final = ("submit", "poll")
_FORM: Final = "def submit(self, key: str, row: dict) and def poll(self) -> list of (key, result)"


def inner_function(function: object) -> object:
    """The function inside of partials."""
    return inner_function(function.func) if isinstance(function, partial) else function


def is_engine(function: object) -> bool:
    """Whether a class, or a partial of one, makes engines; one that can be called is none."""
    kind = inner_function(function)
    return (
        inspect.isclass(kind)
        and all(inspect.isfunction(getattr(kind, name, None)) for name in _METHODS)
        and "__call__" not in {name for parent in kind.__mro__[:-1] for name in vars(parent)}
    )


def engine_calling(call: str, function: Callable[..., Any]) -> Calling:
    """How an engine is called; its identity is not filled in."""
    kind: Any = inner_function(function)
    submit, poll = kind.submit, kind.poll
    if inspect.iscoroutinefunction(submit) or inspect.iscoroutinefunction(poll):
        raise UserError(
            f"{call}: {name_of(function)}.submit and poll are async\n"
            f"  to fix: write {_FORM}, or one async function that is called for each row"
        )
    parameters = list(inspect.signature(submit).parameters)[1:]
    if parameters[2:] not in ([], ["context"]) or len(parameters) < len(_METHODS):
        raise UserError(
            f"{call}: {name_of(function)}.submit takes {', '.join(parameters) or 'nothing'}\n"
            f"  to fix: write {_FORM}; a third parameter of submit can be `context`"
        )
    return Calling(
        function=function,
        name=name_of(function),
        rows="row",
        makes=True,
        takes_context=len(parameters) > len(_METHODS),
        is_engine=True,
        can_abort=inspect.isfunction(getattr(kind, "abort", None)),
    )


def engine_schema(call: str, function: object, given: object) -> object:
    """The schema given for the rows of an engine: its methods have no annotation that says it."""
    if given is None:
        raise UserError(
            f"{call}: {name_of(function)} has submit and poll: nothing says what rows it makes\n"
            '  to fix: give schema="id bigint, text string"'
        )
    return given


def check_engine(call: str, calling: Calling, options: StepOptions, *, expensive: bool) -> None:
    """Refuse options that an engine cannot keep."""
    if not calling.is_engine:
        return
    if not expensive:
        raise UserError(
            f"{call}: {calling.name} has submit and poll, which needs calls that are recorded\n"
            "  to fix: add expensive=True"
        )
    if options.timeout is not None and not calling.can_abort:
        raise UserError(
            f"{call}: timeout is {options.timeout:g} s, and {calling.name} cannot give up a row\n"
            "  to fix: give it a method abort(self, key), or leave timeout= out"
        )
