"""The modes in which the expressions of a plan were typed. Pure.

A call on a dataset follows the mode of the dataset's own expressions, and asks the session only
where there are none yet. Asking is slow, and a plan of two modes could not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from millrace.plan.nodes.node import Node
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression
from millrace.sql.expressions import Expression
from millrace.sql.sql_mode import SqlMode


def modes_in(value: Any) -> Iterator[SqlMode]:  # noqa: ANN401 - a part of a plan
    """The modes of all expressions of a plan, in the order of its fields."""
    if isinstance(value, Expression | AggregateExpression):
        yield value.mode
    elif isinstance(value, tuple | list):
        for part in value:
            yield from modes_in(part)
    elif isinstance(value, Node):
        for one in fields(value):  # type: ignore[arg-type] # Every node is a dataclass.
            yield from modes_in(getattr(value, one.name))
