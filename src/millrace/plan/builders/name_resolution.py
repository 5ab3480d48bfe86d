"""Finds the columns that the names in a tree mean, by Spark's rules.

A name is `column`, `table.column`, or either of them followed by fields. Names are compared without
regard to case. Visible columns come before hidden ones. Invariant: in a resolved tree each column
has the one name that the plan knows it by; what is left of a name are fields of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sqlglot import exp

from millrace.plan.relation import Attribute
from millrace.plan.windows.time_windows import is_window_time, last_moment
from millrace.sql.connect_expressions import ORIGIN, OUTER
from millrace.sql.parser import name_of_column
from millrace.sql.spark_text import WITHOUT_BRACKETS
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import RESOLVED, WRITTEN, ExpressionRefused, NotNative
from millrace.text import did_you_mean, listed

_TIME_WINDOWS: Final = frozenset({"window", "session_window"})
"""Columns that GROUP BY window(...) makes, which only Spark does."""

Outer = Callable[[exp.Column], exp.Expression | None]
"""Finds a name that no attribute has, in the query around a subquery."""


def resolve(
    tree: exp.Expression, attributes: Sequence[Attribute], outer: Outer | None = None
) -> exp.Expression:
    """The tree with each name replaced by that of the plan; the tree itself is not changed."""
    resolved = tree.copy()
    rest: list[tuple[exp.Expression, frozenset[str]]] = [(resolved, frozenset())]
    while rest:
        part, variables = rest.pop()
        if isinstance(part, exp.Column):
            column = _column(part, attributes, outer, variables)
            if part is resolved:
                return column
            if column is not part:
                part.replace(column)
        elif isinstance(part, exp.Lambda):
            names = {folded(name.name) for name in part.expressions}
            rest.append((part.this, variables | names))
        elif is_window_time(part):
            column = _column(part.expressions[0], attributes, outer, variables)
            by_column = {a.column: a for a in attributes}
            time = last_moment(part, column, by_column.get(column.name))
            if part is resolved:
                return time
            part.replace(time)
        elif not isinstance(part, exp.Query):
            rest += [(inner, variables) for inner in part.iter_expressions(reverse=True)]
    return resolved


def plan_column(name: str) -> exp.Column:
    """A column by the name that the plan knows it by."""
    column = exp.column(name_of_column(name))
    column.meta[RESOLVED] = True
    return column


def is_resolved(column: exp.Column) -> bool:
    """Whether its name is that of the plan."""
    return bool(column.meta.get(RESOLVED))


def attribute_of(column: exp.Column, attributes: Sequence[Attribute]) -> Attribute:
    """The one attribute that a whole name means."""
    for attribute, fields in _best(column, attributes):
        if not fields:
            return attribute
    raise no_column(column, attributes)


def find(column: exp.Column, attributes: Sequence[Attribute]) -> Attribute | None:
    """The attribute that a whole name means; None if there is none."""
    return next((a for a, fields in _best(column, attributes) if not fields), None)


def names_outside(tree: exp.Expression, attributes: Sequence[Attribute]) -> bool:
    """Whether a column is named through a table or dataset that these attributes are not of."""
    rest: list[tuple[exp.Expression, frozenset[str]]] = [(tree, frozenset())]
    while rest:
        part, variables = rest.pop()
        if isinstance(part, exp.Column):
            if _is_outside(part, attributes, variables):
                return True
        elif isinstance(part, exp.Lambda):
            names = {folded(name.name) for name in part.expressions}
            rest.append((part.this, variables | names))
        elif not isinstance(part, exp.Query):
            rest += [(inner, variables) for inner in part.iter_expressions()]
    return False


def _is_outside(
    column: exp.Column, attributes: Sequence[Attribute], variables: frozenset[str]
) -> bool:
    if is_resolved(column) or isinstance(column.this, exp.Star):
        return False
    origin = column.meta.get(ORIGIN)
    if origin is not None:
        return not any(origin in attribute.origins for attribute in attributes)
    if column.meta.get(OUTER):
        return not _best(column, attributes)
    first = folded(column.parts[0].name)
    if len(column.parts) == 1 or first in variables or first in _TIME_WINDOWS:
        return False
    known = {folded(name) for a in attributes for name in (a.label, *a.qualifier)}
    return first not in known


def no_column(column: exp.Column, attributes: Sequence[Attribute]) -> ExpressionRefused:
    """The refusal of a name that nothing has."""
    labels = [a.label for a in attributes if not a.hidden]
    name = ".".join(part.name for part in column.parts)
    return ExpressionRefused(
        f"there is no column {name}",
        found=f"columns {listed(labels)}",
        fix=did_you_mean(column.name, labels, "name one of these columns"),
    )


def _column(
    column: exp.Column,
    attributes: Sequence[Attribute],
    outer: Outer | None,
    variables: frozenset[str],
) -> exp.Expression:
    if is_resolved(column) or isinstance(column.this, exp.Star):
        return column
    if folded(column.parts[0].name) in variables:
        return column
    matches = _best(column, attributes)
    if not matches:
        from_outside = outer(column) if outer is not None else None
        if from_outside is not None:
            return from_outside
        if len(column.parts) == 1 and column.name.lower() in WITHOUT_BRACKETS:
            return exp.Anonymous(this=column.name.lower(), expressions=[])
        if column.parts[0].name.lower() in _TIME_WINDOWS:
            raise NotNative("windows of time are Spark's", found=column.sql("spark"), fix="")
        raise no_column(column, attributes)
    attribute, fields = matches[0]
    value: exp.Expression = plan_column(attribute.column)
    value.meta[WRITTEN] = column.parts[len(column.parts) - len(fields) - 1].name
    for field in fields:
        value = exp.Dot(this=value, expression=exp.to_identifier(field, quoted=True))
    return value


def _best(
    column: exp.Column, attributes: Sequence[Attribute]
) -> list[tuple[Attribute, tuple[str, ...]]]:
    """The attribute and the fields that a name means: visible before hidden; none, or one."""
    parts = tuple(part.name for part in column.parts)
    origin = column.meta.get(ORIGIN)
    matches = list(_matches(parts, attributes, origin))
    for hidden in (False, True):
        several = {
            (attribute.column, fields): (attribute, fields)
            for attribute, fields in matches
            if attribute.hidden == hidden
        }
        if origin is not None and len(several) > 1:
            several = _nearest(several, origin)
        if len(several) > 1:
            raise ExpressionRefused(
                f"the column {'.'.join(parts)} is ambiguous",
                found=", ".join(sorted(map(_shown, (a for a, _ in several.values())))),
                fix="name it through its table, as in t.column, or give one of them another name",
            )
        if several:
            return list(several.values())
    return []


def _nearest(
    several: dict[tuple[str, tuple[str, ...]], tuple[Attribute, tuple[str, ...]]], origin: int
) -> dict[tuple[str, tuple[str, ...]], tuple[Attribute, tuple[str, ...]]]:
    """Those with the fewest datasets between them and the one that they are named through."""

    def later(attribute: Attribute) -> int:
        return sum(abs(number) > abs(origin) for number in attribute.origins)

    fewest = min(later(attribute) for attribute, _ in several.values())
    return {key: match for key, match in several.items() if later(match[0]) == fewest}


def _matches(
    parts: tuple[str, ...], attributes: Sequence[Attribute], origin: int | None
) -> Iterator[tuple[Attribute, tuple[str, ...]]]:
    """What a name can mean; through its table if any attribute fits so, else by its label."""
    lowered = tuple(folded(part) for part in parts)
    if origin is not None:
        attributes = [a for a in attributes if origin in a.origins]
    qualified = [
        (attribute, parts[used + 1 :])
        for attribute in attributes
        for used in range(1, min(len(attribute.qualifier), len(parts) - 1) + 1)
        if folded(attribute.label) == lowered[used]
        and tuple(folded(name) for name in attribute.qualifier[-used:]) == lowered[:used]
    ]
    if qualified:
        yield from qualified
        return
    for attribute in attributes:
        if folded(attribute.label) == lowered[0]:
            yield attribute, parts[1:]


def _shown(attribute: Attribute) -> str:
    return ".".join((*attribute.qualifier, attribute.label))
