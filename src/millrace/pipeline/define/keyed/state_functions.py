"""The user's function of `stateful`: what it may be, and how it is called."""

from __future__ import annotations

import inspect

from millrace.errors import UserError
from millrace.pipeline.core.job_model import Calling
from millrace.pipeline.define.user_functions import recognised
from millrace.plan.nodes.map_batches import name_of

_TABLES = 2


def state_calling(call: str, function: object, version: str | None) -> Calling:
    """How a function over rows and states is called."""
    fix = "give def function(rows: pa.Table, states: pa.Table)"
    if not callable(function) or inspect.isclass(function):
        raise UserError(f"{call}: {function!r} is no function\n  to fix: {fix}")
    name = name_of(function)
    if inspect.iscoroutinefunction(function):
        raise UserError(f"{call}: {name} is async\n  to fix: {fix}")
    try:
        inspect.signature(function).bind(*[None] * _TABLES)
    except TypeError as error:
        raise UserError(
            f"{call}: {name} cannot be called with rows and states\n  found: {error}\n"
            f"  to fix: {fix}"
        ) from None
    except ValueError:
        pass  # Some built-in functions have no signature to be seen.
    identity, why = recognised(function, version)
    return Calling(
        function=function,
        name=name,
        rows="batch",
        identity=identity,
        as_table=True,
        unrecognised=why,
    )
