"""Reads the arguments of users' calls that stand for columns: names, Spark SQL, Column objects.

A text that is the name of a column means that column, whatever else it could mean: after
`groupBy("k").sum("v")` the text `sum(v)` is a name. Every other text is Spark SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Union

from sqlglot import exp

from millrace.datasets.classic_columns import classic_tree
from millrace.datasets.dataset_base import query_of_number
from millrace.plan.builders.build_select import attribute_tree
from millrace.plan.relation import Relation
from millrace.sql import connect_expressions
from millrace.sql.parser import canonical, read
from millrace.sql.sql_mode import folded
from millrace.sql.syntax_errors import pointed, refuse_name
from millrace.sql.typed_sql import ExpressionRefused
from millrace.text import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column

ColumnOrName = Union["Column", str]
_ORDER: Final = re.compile(
    r"(?P<what>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*",
    re.IGNORECASE | re.DOTALL,
)


def is_column(given: object) -> bool:
    """Whether this is a Column of PySpark, of either kind of session."""
    return _has(given, "_expr") or _has(given, "_jc")


def _has(given: object, name: str) -> bool:
    """Whether an object has this attribute itself: a Column makes a field of every other name."""
    return name in getattr(given, "__dict__", ())


def column_tree(given: object, relation: Relation) -> exp.Expression:
    """The tree of a column: of its name, of Spark SQL, or of a Column object."""
    if isinstance(given, str):
        named = _named(given, relation)
        return named if named is not None else read(given)
    return object_tree(given)


def object_tree(given: object) -> exp.Expression:
    """The tree of a Column object."""
    if _has(given, "_expr"):
        return connect_expressions.column_tree(given).transform(_with_query, copy=False)
    if _has(given, "_jc"):
        return classic_tree(given)
    return read(given)  # type: ignore[arg-type] # Not text: it is refused.


def _with_query(node: exp.Expression) -> exp.Expression:
    """The query of a dataset that stands for a column."""
    if not isinstance(node, exp.Anonymous) or node.name != connect_expressions.SUBQUERY:
        return node
    use, number, *values = node.expressions
    query = exp.Subquery(this=query_of_number(int(number.name)))
    if use.name == "in":
        value = exp.Tuple(expressions=values) if len(values) > 1 else exp.Paren(this=values[0])
        return exp.In(this=value, query=query)
    return exp.Exists(this=query.this) if use.name == "exists" else query


def column_text(column: object) -> str:
    """A Column object as Spark SQL."""
    if _has(column, "_expr"):
        return canonical(connect_expressions.column_tree(column))
    return canonical(classic_tree(column))


def flat(given: Iterable[object]) -> list[object]:
    """Arguments in which a list stands for its elements, as in `select(["a", "b"])`."""
    return [
        part for value in given for part in (value if isinstance(value, list | tuple) else (value,))
    ]


def column_trees(given: Iterable[object], relation: Relation) -> list[exp.Expression]:
    """The trees of columns; a list among them stands for its elements."""
    return [column_tree(part, relation) for part in flat(given)]


def value_tree(given: object, relation: Relation, fix: str = "leave it out") -> exp.Expression:
    """The tree of an expression that may have no name of its own, such as a condition."""
    tree = column_tree(given, relation)
    if isinstance(given, str):
        refuse_name(tree, given, fix)
    return tree


def order_tree(given: object, relation: Relation, ascending: bool | None = None) -> exp.Expression:
    """The tree of a sort key: a text as `"b DESC NULLS LAST"`, a Column, or a position.

    `ascending` says the direction, whatever the key says.
    """
    tree = _order(given, relation)
    if ascending is None:
        return tree
    bare = tree.this if isinstance(tree, exp.Ordered) else tree
    return exp.Ordered(this=bare, desc=not ascending, nulls_first=ascending)


def _order(given: object, relation: Relation) -> exp.Expression:
    if is_column(given):
        return column_tree(given, relation)
    if isinstance(given, int) and 0 < abs(given) <= len(relation.visible):
        tree = attribute_tree(relation.visible[abs(given) - 1])
        return exp.Ordered(this=tree, desc=given < 0, nulls_first=given > 0)
    named = _named(given, relation) if isinstance(given, str) else None
    if named is not None:
        return named
    match = _ORDER.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise ExpressionRefused(
            "an order is a column or an expression", found=repr(given), fix="write 'a DESC'"
        )
    tree = column_tree(match["what"], relation)
    _refuse_other_words(tree, match[0])
    descending = (match["way"] or "").lower() == "desc"
    nulls = (match["nulls"] or "").lower()
    first = nulls == "first" if nulls else not descending
    return exp.Ordered(this=tree, desc=descending, nulls_first=first)


def _named(text: str, relation: Relation) -> exp.Expression | None:
    """The column whose whole name is this text, if there is just one."""
    lowered = folded(text)
    same = [a for a in relation.visible if folded(a.label) == lowered]
    same = [a for a in same if a.label == text] or same
    return attribute_tree(replace(same[0], label=text)) if len(same) == 1 else None


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
