"""Builds sorts and limits. An order is `"a"`, `"b DESC"` or `"year(c) ASC NULLS LAST"`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.sort import Sort, SortKey
from millrace.sql.expressions import Expression, as_user_error, parse
from millrace.sql.name_checks import free_name
from millrace.sql.parser import read
from millrace.sql.syntax_errors import pointed
from millrace.sql.typed_sql import ExpressionRefused, quoted
from millrace.text import did_you_mean

_ORDER: Final = re.compile(
    r"(?P<what>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE | re.DOTALL,
)


def with_order(child: Node, texts: Sequence[str], call: str) -> tuple[Node, tuple[SortKey, ...]]:
    """The child with a column for each calculated sort key, and the keys."""
    if not texts:
        raise UserError(f"{call} has nothing to sort by\n  to fix: name a column, as in 'a DESC'")
    added: list[tuple[str, Expression]] = []
    keys = []
    for text in texts:
        expression, descending, nulls_first = _read(child, text, call)
        (name,) = expression.columns if len(expression.columns) == 1 else ("",)
        if expression.sql != quoted(name):
            used = [*child.schema.names, *(name for name, _ in added)]
            name = free_name("__order", used, "_")
            added.append((name, expression))
        keys.append(SortKey(name, descending, nulls_first))
    if not added:
        return child, tuple(keys)
    return Project(child, (*pass_columns(child.schema, child.schema.names), *added)), tuple(keys)


def _read(child: Node, text: str, call: str) -> tuple[Expression, bool, bool]:
    with as_user_error(call):
        given: object = text
        match = _ORDER.fullmatch(text) if isinstance(given, str) else None
        if match is None:
            raise ExpressionRefused(
                "an order is a column or an expression", found=repr(text), fix="write 'a DESC'"
            )
        _refuse_other_words(read(match["what"]), text)
    expression = parse(match["what"], child.schema, call=call)
    if not expression.type.is_plain:
        kind = expression.type.arrow or expression.type
        raise UserError(
            f"{call}: rows cannot be sorted by {text!r}\n  found: type {kind}\n"
            "  to fix: sort by a number, text, date or time"
        )
    descending = (match["way"] or "").lower() == "desc"
    nulls = (match["nulls"] or "").lower()
    return expression, descending, nulls == "first" if nulls else not descending


def _refuse_other_words(tree: exp.Expression, text: str) -> None:
    """Refuse a word after the column that is neither a direction nor NULLS FIRST or LAST."""
    if not isinstance(tree, exp.Alias):
        return
    word = tree.alias
    ways = "write ASC or DESC behind it, then NULLS FIRST or NULLS LAST, or nothing"
    raise ExpressionRefused(
        f"rows cannot be sorted {word}",
        found=pointed(text, max(0, text.rfind(word)), len(word)),
        fix=did_you_mean(word, ("ASC", "DESC"), ways),
    )


def first_rows(plan: Node, rows: int | None, skipped: int = 0) -> Node:
    """The first rows of a plan, or all, without those that are skipped.

    A sorted plan keeps only these rows while it sorts.
    """
    match plan:
        case _ if rows is None and not skipped:
            return plan
        case Sort(rows=before, skipped=already):
            left = None if before is None else max(0, before - skipped)
            counts = [count for count in (left, rows) if count is not None]
            most = min(counts) if counts else None
            return replace(plan, rows=most, skipped=already + skipped)
        case Project(child=Sort() as child):
            return replace(plan, child=first_rows(child, rows, skipped))
        case _:
            return Limit(plan, rows, skipped)
