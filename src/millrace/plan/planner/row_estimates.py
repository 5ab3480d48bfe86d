"""Guesses how many rows an operator gives, by the metadata of files. Pure but for their footers.

Invariant: the same plan over the same files gives the same guess. A guess changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from math import inf, prod
from typing import Final

from sqlglot import exp

from millrace.plan.nodes.aggregate import Aggregate, PartialAggregate
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.read_stage import ReadStage
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import SharedRows
from millrace.plan.nodes.sort import Sort
from millrace.plan.nodes.union import Union
from millrace.scan.column_bounds import ColumnBounds, column_bounds
from millrace.sql.expressions import Expression
from millrace.sql.parser import operands, read

_BYTES_A_ROW: Final = 64
_ROWS_UNKNOWN: Final = 1_000_000.0
_EQUAL: Final = 0.1
_COMPARED: Final = 0.33
_OTHER: Final = 0.5
_NULL: Final = 0.05


class RowEstimates:
    """Guesses for the nodes of one plan, each made once; `stages` are the trees that it reads."""

    def __init__(self, stages: Mapping[int, Node] | None = None) -> None:
        self._stages = stages or {}
        self._rows_of: dict[int, tuple[Node, float]] = {}
        self._values_of: dict[tuple[int, str], tuple[Node, float | None]] = {}

    def rows(self, node: Node) -> float:
        """The number of rows of a node, about; at least 1."""
        if id(node) not in self._rows_of:
            self._rows_of[id(node)] = node, max(1.0, self._rows(node))
        return self._rows_of[id(node)][1]

    def distinct_values(self, node: Node, column: str) -> float | None:
        """How many values a column can have before any filter; None if that is not known."""
        key = id(node), column
        if key not in self._values_of:
            self._values_of[key] = node, self._distinct(node, column)
        return self._values_of[key][1]

    def base_rows(self, node: Node) -> float:
        """The number of rows below all filters: the most values that a column can have, about."""
        while isinstance(node, Filter | Project):
            node = node.child
        return self.rows(node)

    def kept_part(self, node: Node) -> float:
        """The part of the rows of the largest scan below that filters and joins leave, about."""
        return min(1.0, self.rows(node) / max(1.0, self._largest_scan(node)))

    def _largest_scan(self, node: Node) -> float:
        if not node.children:
            return self.rows(node)
        return max(self._largest_scan(child) for child in node.children)

    def key_values(self, sides: Sequence[tuple[Node, str]]) -> float:
        """How many values equal columns have: as many as the smallest side has rows, if unknown."""
        known = [self.distinct_values(node, column) for node, column in sides]
        if None in known:
            return min(self.base_rows(node) for node, _ in sides)
        return max(value for value in known if value is not None)

    def selectivity(self, condition: Expression, node: Node) -> float:
        """The part of a node's rows for which a condition is true, about."""
        return self._part(read(condition.text), node)

    def _distinct(self, node: Node, column: str) -> float | None:
        match node:
            case Scan(source=source):
                bounds = column_bounds(source, column)
                return None if bounds is None else min(float(bounds.values), self.rows(node))
            case SharedRows(rows=rows):
                return self.distinct_values(rows, column)
            case ReadStage(stage=number) if number in self._stages:
                return self.distinct_values(self._stages[number], column)
            case Project(columns=columns):
                made_of = dict(columns)[column]
                bare = next(iter(made_of.columns)) if made_of.is_column else None
                return None if bare is None else self.distinct_values(node.child, bare)
            case Aggregate(keys=keys) if column not in keys:
                return None
            case Join(columns=join_columns):
                origin = next(c for c in join_columns if c.name == column)
                side = node.right if origin.side == "right" else node.left
                return self.distinct_values(side, origin.source)
            case Union(inputs=inputs):
                known = [self.distinct_values(side, column) for side in inputs]
                return max((k for k in known if k is not None), default=None)
            case _ if len(node.children) == 1 and column in node.children[0].schema.names:
                return self.distinct_values(node.children[0], column)
            case _:
                return None

    def _rows(self, node: Node) -> float:
        match node:
            case Scan(source=source):
                counts = [shape.row_group_rows for shape in source.shapes]
                if any(count is None for count in counts):
                    return source.bytes / _BYTES_A_ROW
                return float(sum(sum(count) for count in counts if count is not None))
            case Filter(child=child, condition=condition):
                return self.rows(child) * self.selectivity(condition, child)
            case Limit(child=child, rows=most) if most is not None:
                return min(float(most), self.rows(child))
            case Sort(child=child, rows=most) if most is not None:
                return min(float(most), self.rows(child))
            case (
                Aggregate(child=child, keys=keys)
                | PartialAggregate(child=child, keys=keys)
                | DropDuplicates(child=child, keys=keys)
            ):
                rows = self.rows(child)
                known = [self.distinct_values(child, key) or rows * _EQUAL for key in keys]
                return min(rows, prod(known)) if keys else 1.0
            case Union(inputs=inputs):
                return sum(self.rows(side) for side in inputs)
            case SharedRows(rows=shared):
                return self.rows(shared)
            case ReadStage(stage=number) if number in self._stages:
                return self.rows(self._stages[number])
            case Join():
                return self._join_rows(node)
            case _ if node.children:
                return max(self.rows(child) for child in node.children)
            case _:
                size = getattr(node, "bytes", None)
                return size / _BYTES_A_ROW if isinstance(size, int) else _ROWS_UNKNOWN

    def _join_rows(self, join: Join) -> float:
        left, right = self.rows(join.left), self.rows(join.right)
        if join.how in ("semi", "anti"):
            return left * _OTHER
        pairs = zip(join.left_keys, join.right_keys, strict=True)
        values = [self.key_values([(join.left, a), (join.right, b)]) for a, b in pairs]
        least = {"left": left, "right": right, "full": max(left, right)}.get(join.how, 1.0)
        most = max(self.base_rows(join.left), self.base_rows(join.right))
        return max(joined_rows(left, right, values, most), least)

    def _part(self, tree: exp.Expression, node: Node) -> float:
        match tree:
            case exp.Paren(this=exp.Expression() as inner):
                return self._part(inner, node)
            case exp.And():
                return prod(self._part(side, node) for side in operands(tree, exp.And))
            case exp.Or():
                return min(1.0, sum(self._part(side, node) for side in operands(tree, exp.Or)))
            case exp.Not(this=exp.Expression() as inner):
                return 1.0 - self._part(inner, node)
            case exp.Is():
                return _NULL
            case exp.EQ():
                return self._equal_part(tree, node)
            case exp.In(expressions=values):
                return min(1.0, len(values) * self._equal_part(tree, node))
            case exp.Between():
                low, high = tree.args["low"], tree.args["high"]
                below, above = _below(tree.this, high, node), _below(tree.this, low, node)
                known = below is not None and above is not None
                return max(0.0, (below or 0.0) - (above or 0.0)) if known else _EQUAL
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return _compared_part(tree, node)
            case exp.NEQ():
                return 1.0 - _EQUAL
            case _:
                return _OTHER

    def _equal_part(self, tree: exp.Expression, node: Node) -> float:
        column = tree.this if isinstance(tree.this, exp.Column) else tree.args.get("expression")
        if isinstance(column, exp.Column) and column.name in node.schema.names:
            values = self.distinct_values(node, column.name)
            if values is not None:
                return 1.0 / max(1.0, values)
        return _EQUAL


def estimated_rows(node: Node) -> float:
    """The number of rows of a node, about; at least 1."""
    return RowEstimates().rows(node)


def joined_rows(left: float, right: float, distinct: list[float], most: float = inf) -> float:
    """Rows of an inner join on keys of so many values; further keys count less and less.

    `most` is how many values all keys have together, at most: no more than a side has rows.
    """
    together = 1.0
    for number, values in enumerate(sorted(distinct, reverse=True)):
        together *= max(1.0, values) ** (0.5**number)
    return max(1.0, left * right / min(together, max(1.0, most)))


def _compared_part(tree: exp.Expression, node: Node) -> float:
    up = isinstance(tree, exp.LT | exp.LTE)
    column, literal = tree.this, tree.expression
    if not isinstance(column, exp.Column):
        column, literal, up = literal, column, not up
    below = _below(column, literal, node)
    if below is None:
        return _COMPARED
    return below if up else 1.0 - below


def _below(column: exp.Expression, literal: exp.Expression, node: Node) -> float | None:
    """The part of a column's values below a literal, if they are spread evenly."""
    value = _value(literal)
    bounds = _bounds(node, column.name) if isinstance(column, exp.Column) else None
    if value is None or bounds is None:
        return None
    return min(1.0, max(0.0, (value - bounds.low) / max(1, bounds.values)))


def _bounds(node: Node, column: str) -> ColumnBounds | None:
    match node:
        case Scan(source=source) if column in source.schema.names:
            return column_bounds(source, column)
        case Filter(child=child):
            return _bounds(child, column)
        case Project(columns=columns, child=child):
            made_of = dict(columns).get(column)
            if made_of is None or not made_of.is_column:
                return None
            return _bounds(child, next(iter(made_of.columns)))
        case _:
            return None


def _value(tree: exp.Expression) -> float | None:
    """The value of a literal, days counted from 1970."""
    if isinstance(tree, exp.Paren | exp.Cast):
        return _value(tree.this)
    if isinstance(tree, exp.Neg):
        value = _value(tree.this)
        return None if value is None else -value
    if not isinstance(tree, exp.Literal):
        return None
    try:
        if tree.is_string:
            return float((date.fromisoformat(tree.name[:10]) - date(1970, 1, 1)).days)
        return float(tree.name)
    except ValueError:
        return None
