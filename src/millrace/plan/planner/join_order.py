"""Orders inner joins by the guessed sizes of their results.

Conditions that two inputs are equal become keys, so that no cross join is left where keys connect
the inputs. A large input meets its small sides that keep few of its rows first: they are broadcast,
and the large input is exchanged without the other rows. Then, of the pairs that keys connect, the
one with the smallest result is joined. The written order stays if another one is not clearly
better, so that a plan seldom changes.
Invariant: the plan's result is the same, and the same plan over the same files is ordered alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import Final

from sqlglot import exp

from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join, JoinColumn
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.planner.join_tree import JoinTree, Shape, is_join_tree
from millrace.plan.planner.row_estimates import RowEstimates, joined_rows
from millrace.sql.condition_parts import typed_expression
from millrace.sql.expressions import Expression

_INPUTS_MAX: Final = 24
"""Joins of more inputs stay as they are written."""
_CLEARLY_BETTER: Final = 0.7
"""The part of the rows in between that another order must not exceed."""
_CONDITION: Final = 0.3
"""The part of the rows that a condition over several inputs keeps, about."""
_BROADCAST_ROWS: Final = 200_000
"""A side with fewer rows is broadcast, about; others are exchanged together with their partner."""
_FEW: Final = 0.5
"""The part of a large side's rows that its join with a small one keeps, to be joined first."""


def order_joins(plan: Node) -> Node:
    """The same plan, with its inner joins in an order that makes few rows in between."""
    return _ordered(plan, RowEstimates())


def _ordered(plan: Node, estimates: RowEstimates) -> Node:
    if not is_join_tree(plan):
        return _over_ordered(plan, estimates)
    tree = JoinTree()
    shape, names = tree.add(plan)
    if len(tree.inputs) == 1:  # A projection whose columns are made of several inputs.
        return _over_ordered(plan, estimates)
    if len(tree.inputs) > _INPUTS_MAX:
        return _below_joins(plan, estimates)
    for source in tree.inputs:
        source.node = _ordered(source.node, estimates)
    written = len(tree.conditions)
    tree.use_equalities()
    sizes = _JoinSizes(tree, estimates)
    chosen = sizes.best_shape()
    if sizes.cost(chosen) >= _CLEARLY_BETTER * sizes.cost(shape):
        chosen = shape
    if chosen == shape and len(tree.conditions) == written:
        return _below_joins(plan, estimates)
    joined = _JoinBuilder(tree, sizes).build(chosen)
    columns = dict(pass_columns(joined.schema, [*dict.fromkeys(names.values())]))
    return Project(joined, tuple((name, columns[names[name]]) for name in plan.schema.names))


def _over_ordered(node: Node, estimates: RowEstimates) -> Node:
    return with_new_children(node, [_ordered(child, estimates) for child in node.children])


def _below_joins(node: Node, estimates: RowEstimates) -> Node:
    """A tree that stays as it is, with the joins below it ordered."""
    children = [
        _below_joins(child, estimates) if is_join_tree(child) else _ordered(child, estimates)
        for child in node.children
    ]
    return with_new_children(node, children)


@dataclass(frozen=True, slots=True)
class _JoinedInputs:
    """Some inputs, joined: how, and to how many rows."""

    shape: Shape
    inputs: frozenset[int]
    rows: float


class _JoinSizes:
    """Guesses the rows of joins of some inputs."""

    def __init__(self, tree: JoinTree, estimates: RowEstimates) -> None:
        self._nodes = [source.rows for source in tree.inputs]
        self._owners = tree.owners
        self._written = tree.equal
        self._conditions = [tree.inputs_of(condition) for condition in tree.conditions]
        self.rows = [estimates.rows(node) for node in self._nodes]
        self._base_rows = [estimates.base_rows(node) for node in self._nodes]
        self.classes = _classes(tree.equal)
        self._class_inputs = [
            frozenset(self._owners[name] for name in members) for members in self.classes
        ]
        self._values = [
            estimates.key_values([(self._nodes[self._owners[name]], name) for name in members])
            for members in self.classes
        ]

    def best_shape(self) -> Shape:
        """Join the pair that ranks first, again and again; without keys only at last."""
        parts = [
            _JoinedInputs(number, frozenset({number}), rows)
            for number, rows in enumerate(self.rows)
        ]
        while len(parts) > 1:
            a, b = min(combinations(parts, 2), key=self._rank)
            parts = [part for part in parts if part not in (a, b)]
            parts.append(self._joined(a, b))
        return parts[0].shape

    def cost(self, shape: Shape) -> float:
        """The rows of all results in between, and of the sides that are exchanged for them."""
        return self._cost(shape)[0]

    def keys(self, left: frozenset[int], right: frozenset[int]) -> list[tuple[str, str]]:
        """A column of each side for every set of equal columns that both sides have.

        Two that were written as equal, if there are such: the engine orders joins itself where it
        reads files alone, and knows no other pairs than these.
        """
        pairs = []
        for members in self.classes:
            ours = [name for name in members if self._owners[name] in left]
            theirs = [name for name in members if self._owners[name] in right]
            if ours and theirs:
                both = [(a, b) for a, b in self._written if a in ours and b in theirs]
                both += [(b, a) for a, b in self._written if b in ours and a in theirs]
                pairs.append(both[0] if both else (ours[0], theirs[0]))
        return pairs

    def _rank(
        self, pair: tuple[_JoinedInputs, _JoinedInputs]
    ) -> tuple[bool, bool, float, list[int]]:
        a, b = pair
        rows = self._joined(a, b).rows
        connected = any(c & a.inputs and c & b.inputs for c in self._class_inputs)
        selective = self._has_small(a, b) and rows <= _FEW * max(a.rows, b.rows)
        return not connected, not selective, rows, sorted(a.inputs | b.inputs)

    def _has_small(self, *parts: _JoinedInputs) -> bool:
        """Whether a part is made of small inputs, so that it is broadcast for certain."""
        read = [sum(self._base_rows[number] for number in part.inputs) for part in parts]
        return min(read) <= _BROADCAST_ROWS

    def _joined(self, a: _JoinedInputs, b: _JoinedInputs) -> _JoinedInputs:
        """Both parts; the larger one is on the left, where it is read row by row."""
        both = a.inputs | b.inputs
        shared = [
            number
            for number, inputs in enumerate(self._class_inputs)
            if inputs & a.inputs and inputs & b.inputs
        ]
        values = [self._values[number] for number in shared]
        most = max(self._key_combinations(a, shared), self._key_combinations(b, shared))
        asked = sum(c <= both and not c <= a.inputs and not c <= b.inputs for c in self._conditions)
        rows = max(1.0, joined_rows(a.rows, b.rows, values, most) * _CONDITION**asked)
        left, right = (a, b) if a.rows >= b.rows else (b, a)
        return _JoinedInputs((left.shape, right.shape), both, rows)

    def _key_combinations(self, part: _JoinedInputs, classes: Sequence[int]) -> float:
        """The most values that some equal columns have together: the rows of one input with all."""
        return min(
            (
                self._base_rows[number]
                for number in part.inputs
                if all(number in self._class_inputs[at] for at in classes)
            ),
            default=inf,
        )

    def _cost(self, shape: Shape) -> tuple[float, _JoinedInputs]:
        if isinstance(shape, int):
            return 0.0, _JoinedInputs(shape, frozenset({shape}), self.rows[shape])
        left_cost, left = self._cost(shape[0])
        right_cost, right = self._cost(shape[1])
        part = self._joined(left, right)
        return left_cost + right_cost + part.rows + _exchanged_rows(left, right), part


def _exchanged_rows(a: _JoinedInputs, b: _JoinedInputs) -> float:
    """The rows that move to other tasks if two parts are joined: none if one part is small."""
    return 0.0 if min(a.rows, b.rows) <= _BROADCAST_ROWS else a.rows + b.rows


def _classes(equal: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Sets of columns that are all equal, each in the order of its mention."""
    classes: list[list[str]] = []
    for a, b in equal:
        touched = [members for members in classes if a in members or b in members]
        merged = list(dict.fromkeys([*(name for members in touched for name in members), a, b]))
        classes = [members for members in classes if members not in touched]
        classes.append(merged)
    return classes


@dataclass(slots=True)
class _JoinBuilder:
    """Builds the joins of a tree in some order. Conditions are asked as soon as they can be."""

    tree: JoinTree
    sizes: _JoinSizes
    waiting: list[Expression] = field(default_factory=list)

    def build(self, shape: Shape) -> Node:
        """The joins, under the conditions that can fail."""
        self.waiting = list(self.tree.conditions)
        node, _ = self._build(shape)
        for condition in [*self.waiting, *self.tree.last]:
            node = Filter(node, condition)
        return node

    def _build(self, shape: Shape) -> tuple[Node, frozenset[int]]:
        if isinstance(shape, int):
            inputs = frozenset({shape})
            return self._asked(self._with_equal_columns(shape), inputs), inputs
        left, our_inputs = self._build(shape[0])
        right, their_inputs = self._build(shape[1])
        keys = self.sizes.keys(our_inputs, their_inputs)
        joined = Join(
            left=left,
            right=right,
            left_keys=tuple(ours for ours, _ in keys),
            right_keys=tuple(theirs for _, theirs in keys),
            how="inner" if keys else "cross",
            columns=(
                *(JoinColumn(name, "left", name) for name in left.schema.names),
                *(JoinColumn(name, "right", name) for name in right.schema.names),
            ),
        )
        both = our_inputs | their_inputs
        return self._asked(joined, both), both

    def _with_equal_columns(self, number: int) -> Node:
        """An input whose columns are equal that equal a column of another input."""
        node = self.tree.inputs[number].rows
        for members in self.sizes.classes:
            own = [name for name in members if self.tree.owners[name] == number]
            for other in own[1:]:
                tree = exp.EQ(this=_column(own[0]), expression=_column(other))
                node = Filter(node, typed_expression(tree, node.schema))
        return node

    def _asked(self, node: Node, inputs: frozenset[int]) -> Node:
        """A node under the conditions that can be asked now; those without columns are last."""
        ready = [c for c in self.waiting if c.columns and self.tree.inputs_of(c) <= inputs]
        for condition in ready:
            node = Filter(node, condition)
        self.waiting = [condition for condition in self.waiting if condition not in ready]
        return node


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))
