"""The values of a pivot: as literals, with the names of their columns, or found by a query."""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_rows import distinct, limit
from millrace.plan.builders.build_select import select
from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import named
from millrace.plan.builders.reshape.build_pivot import PivotValue
from millrace.plan.relation import Relation
from millrace.sql.connect_literals import cast_tree, number_tree
from millrace.sql.parser import LITERAL
from millrace.sql.typed_sql import ExpressionRefused, NotNative

PIVOT_VALUES_MAX: Final = 10_000
"""As Spark's spark.sql.pivotMaxValues."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SECOND: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PLAIN_MIN: Final = 1e-3
_PLAIN_MAX: Final = 1e7
"""Between these, Java writes numbers without an exponent."""


def values_query(context: BuildContext, relation: Relation, column: exp.Expression) -> Relation:
    """The values that a column has, in order, and Spark's texts of them; one too many at most."""
    rows = distinct(context, select(context, relation, [named(column, "value")]).only_visible())
    value = plan_column(rows.visible[0].column)
    ordered = sort(context, rows, [exp.Ordered(this=value, nulls_first=True)])
    label = named(cast_tree(value.copy(), "STRING"), "label")
    return limit(select(context, ordered, [value, label]).only_visible(), PIVOT_VALUES_MAX + 1)


def found_values(rows: pa.Table) -> tuple[PivotValue, ...]:
    """The values that the query found."""
    if rows.num_rows > PIVOT_VALUES_MAX:
        raise ExpressionRefused(
            "the column of a pivot has too many values",
            found=f"more than {PIVOT_VALUES_MAX:,}",
            fix="give the values to keep",
        )
    return tuple(
        PivotValue((literal_of(value),), "null" if label is None else label)
        for value, label in zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True)
    )


def given_value(tree: exp.Expression) -> PivotValue:
    """A value that was given as a literal, or as several in brackets; perhaps with an alias."""
    label = None
    if isinstance(tree, exp.Alias | exp.PivotAlias):
        label, tree = tree.alias, tree.this
    parts = tree.expressions if isinstance(tree, exp.Tuple) else [tree]
    if label is None:
        texts = [literal_label(part) for part in parts]
        label = "{" + ", ".join(texts) + "}" if isinstance(tree, exp.Tuple) else texts[0]
    return PivotValue(tuple(parts), label)


def literal_of(value: Any) -> exp.Expression:  # noqa: ANN401 - a value of Python
    """A value as a tree."""
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case str():
            return exp.Literal.string(value)
        case int():
            return number_tree(str(value))
        case float():
            return cast_tree(exp.Literal.string(repr(value)), "DOUBLE")
        case Decimal():
            return number_tree(f"{value:f}", "BD")
        case datetime():
            return cast_tree(exp.Literal.string(str(value)), "TIMESTAMP")
        case date():
            return cast_tree(exp.Literal.string(str(value)), "DATE")
        case _:
            raise NotNative("this is no value for a pivot here", found=repr(value), fix="")


def literal_label(tree: exp.Expression) -> str:
    """The text that Spark makes of a literal."""
    match tree:
        case exp.Null():
            return "null"
        case exp.Boolean():
            return str(tree.this).lower()
        case exp.Paren():
            return literal_label(tree.this)
        case exp.Neg():
            text = literal_label(tree.this)
            return text if text.strip("0.") == "" else f"-{text}"
        case exp.Literal() if tree.is_string:
            return str(tree.this)
        case exp.Literal():
            return _number(str(tree.this), "")
        case exp.Anonymous() if str(tree.this).startswith(LITERAL):
            return _number(str(tree.expressions[0].this), str(tree.this).removeprefix(LITERAL))
        case exp.Cast() | exp.TryCast() if not tree.args.get("safe"):
            return _cast(tree.this, str(tree.to.this.value))
        case _:
            raise NotNative("this value of a pivot has no name here", found=tree.sql(), fix="")


def _number(text: str, suffix: str) -> str:
    if text.isdigit() and suffix in ("", "L", "S", "Y"):
        return str(int(text))
    if suffix in ("", "BD") and "e" not in text.lower():
        return f"{Decimal(text):f}"
    if suffix == "D":
        return _double(float(text))
    raise NotNative("this value of a pivot has no name here", found=text, fix="")


def _cast(inner: exp.Expression, kind: str) -> str:
    text = str(inner.this) if isinstance(inner, exp.Literal) else ""
    match kind:
        case "DATE" if _DAY.fullmatch(text):
            return text
        case "TIMESTAMP" | "TIMESTAMPLTZ" | "TIMESTAMPTZ" if _SECOND.fullmatch(text):
            return text
        case "DOUBLE" if text:
            return _double(float(text))
        case "TINYINT" | "SMALLINT" | "INT" | "BIGINT" | "DECIMAL" if text or inner.this:
            return literal_label(inner)
        case _:
            raise NotNative("this value of a pivot has no name here", found=inner.sql(), fix="")


def _double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX:
        return repr(value)
    raise NotNative("this value of a pivot has no name here", found=repr(value), fix="")
