"""Columns of `window` and `session_window`, which carry a mark, and `window_time` of them.

Spark marks such a column in its metadata, and so does a relation. `window_time` is the last moment
of a window: the end less a microsecond. It takes only a column with the mark.
"""

from __future__ import annotations

import json
from typing import Final

from sqlglot import exp

from millrace.plan.relation import Attribute
from millrace.sql.labels.spark_labels import SPARK_NAME
from millrace.sql.typed_sql import ExpressionRefused

_MARKS: Final = {"window": "spark.timeWindow", "session_window": "spark.sessionWindow"}


def window_mark(tree: exp.Expression) -> str | None:
    """The metadata of the column that a call of `window` makes; None for other trees."""
    mark = _MARKS.get(tree.name.lower()) if isinstance(tree, exp.Anonymous) else None
    return None if mark is None else json.dumps({mark: True})


def is_window_time(tree: exp.Expression) -> bool:
    """Whether this is a call of `window_time` over a name."""
    return (
        isinstance(tree, exp.Anonymous)
        and tree.name.lower() == "window_time"
        and len(tree.expressions) == 1
        and isinstance(tree.expressions[0], exp.Column)
    )


def last_moment(
    call: exp.Expression, column: exp.Expression, attribute: Attribute | None
) -> exp.Expression:
    """The last moment of a window, of which the column and its attribute are known."""
    marks = {} if attribute is None else json.loads(attribute.metadata or "{}")
    if not any(mark in marks for mark in _MARKS.values()):
        raise ExpressionRefused(
            "the input is not a window column, to Spark neither",
            found=call.sql("spark"),
            fix="name a column that groupBy(window(...)) has made",
        )
    end = exp.Dot(this=column, expression=exp.to_identifier("end", quoted=True))
    step = exp.Interval(this=exp.Literal.string("1"), unit=exp.Var(this="MICROSECOND"))
    tree = exp.Paren(this=exp.Sub(this=end, expression=step))
    tree.meta[SPARK_NAME] = call.copy()
    return tree
