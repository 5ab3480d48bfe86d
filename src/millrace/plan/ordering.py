"""Reads orders as users write them: `"a"`, `"b DESC"`, `"year(c) ASC NULLS LAST"`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from millrace.errors import UserError
from millrace.plan.expressions import Expression, parse
from millrace.plan.names import free_name
from millrace.plan.nodes import Node, Project, passed_on
from millrace.plan.sorting import SortKey
from millrace.plan.terms import quoted

_ORDER: Final = re.compile(
    r"(?P<what>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE | re.DOTALL,
)


def with_order(child: Node, texts: Sequence[str], call: str) -> tuple[Node, tuple[SortKey, ...]]:
    """The child, with columns added for what is calculated to sort by, and the keys."""
    if not texts:
        raise UserError(f"{call} has nothing to sort by\n  to fix: name a column, as in 'a DESC'")
    added: list[tuple[str, Expression]] = []
    keys = []
    for text in texts:
        expression, descending, nulls_first = _read(child, text, call)
        (name,) = expression.columns if len(expression.columns) == 1 else ("",)
        if expression.sql != quoted(name):
            taken = [*child.schema.names, *(name for name, _ in added)]
            name = free_name("__order", taken, "_")
            added.append((name, expression))
        keys.append(SortKey(name, descending, nulls_first))
    if not added:
        return child, tuple(keys)
    return Project(child, (*passed_on(child.schema, child.schema.names), *added)), tuple(keys)


def _read(child: Node, text: str, call: str) -> tuple[Expression, bool, bool]:
    found = _ORDER.fullmatch(text)
    if found is None:
        raise UserError(f"{call}: an empty order\n  to fix: name a column, as in 'a DESC'")
    expression = parse(found["what"], child.schema, call=call)
    if expression.type.arrow is not None:
        raise UserError(
            f"{call}: rows cannot be sorted by {text!r}\n  found: type {expression.type.arrow}\n"
            "  to fix: sort by a number, text, date or time"
        )
    descending = (found["way"] or "").lower() == "desc"
    nulls = (found["nulls"] or "").lower()
    return expression, descending, nulls == "first" if nulls else not descending
