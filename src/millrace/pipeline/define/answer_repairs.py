"""Functions that repair answers that were paid for and cannot be used, instead of paying again.

Invariant: what repairs answers decides rows, so it is a part of what the step is.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Final

from millrace.errors import UserError
from millrace.pipeline.core.job_model import Calling, StepOptions
from millrace.pipeline.define.user_functions import recognised
from millrace.plan.nodes.map_batches import name_of

_FORM: Final = "def repair(row: dict, error: mr.AnswerUnusable)"
_GIVEN: Final = 2


def with_repair(call: str, calling: Calling, repair: object, options: StepOptions) -> Calling:
    """How a function is called whose unusable answers are repaired; refuses what cannot be."""
    if repair is None:
        return calling
    if not callable(repair) or inspect.isclass(repair):
        raise UserError(f"{call}: repair is {repair!r}\n  to fix: write {_FORM}")
    if not options.expensive:
        raise UserError(
            f"{call}: repair needs calls that are recorded\n  to fix: add expensive=True"
        )
    if calling.rows != "row" or calling.is_engine:
        raise UserError(
            f"{call}: repair, and {calling.name} does not get rows one by one\n"
            "  to fix: repair answers in the function, or let it take a dict"
        )
    if inspect.iscoroutinefunction(repair) and not calling.is_async:
        raise UserError(
            f"{call}: repair is async, and {calling.name} is not\n"
            "  to fix: write both as async def, or neither"
        )
    parameters = list(inspect.signature(repair).parameters)
    if len(parameters) != _GIVEN:
        raise UserError(
            f"{call}: {name_of(repair)} takes {', '.join(parameters) or 'nothing'}\n"
            f"  to fix: write {_FORM}"
        )
    identity, why = recognised(repair, options.version)
    return replace(
        calling,
        repair=repair,
        identity=f"{calling.identity} repair {identity}" if calling.identity and identity else "",
        unrecognised=calling.unrecognised or why,
    )
