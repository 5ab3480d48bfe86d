"""A tree of inner and cross joins taken apart: its inputs, and the conditions that join them.

Filters and projections between the joins are taken apart too. Every column of every input has a
name that no other one has. Invariant: the pairs of rows that meet all conditions, in any order of
joins, are the rows of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.keys import HashPartitioner
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.sql.condition_parts import equal_sides, typed_expression
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import ExpressionRefused
from millrace.sql.types import common_with_text, to_arrow

Shape = int | tuple["Shape", "Shape"]
"""The order of joins: the number of an input, or two sides."""


@dataclass(slots=True)
class JoinInput:
    """An input of the tree, its columns by their new names, and columns calculated for keys."""

    node: Node
    names: dict[str, str]
    calculated: list[tuple[str, Expression]] = field(default_factory=list)

    @property
    def rows(self) -> Node:
        """The input with its new names and calculated columns."""
        new = {old: name for name, old in self.names.items()}
        node = self.node
        if any(old != name for old, name in new.items()):
            columns = pass_columns(node.schema, list(new))
            node = Project(node, tuple((new[old], column) for old, column in columns))
        if not self.calculated:
            return node
        return Project(node, (*pass_columns(node.schema, node.schema.names), *self.calculated))


@dataclass(slots=True)
class JoinTree:
    """The parts of a tree. `last` are conditions that can fail: they are asked when all is joined.

    `equal` are columns whose values are equal in each row of the result.
    """

    inputs: list[JoinInput] = field(default_factory=list)
    conditions: list[Expression] = field(default_factory=list)
    last: list[Expression] = field(default_factory=list)
    equal: list[tuple[str, str]] = field(default_factory=list)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    @property
    def schema(self) -> pa.Schema:
        """All columns of all inputs."""
        return pa.schema(list(self.types.items()))

    def add(self, node: Node) -> tuple[Shape, dict[str, str]]:
        """Take a node apart; returns the order of its joins, and the new names of its columns."""
        match node:
            case Filter(child=child, condition=condition) if is_join_tree(child):
                shape, names = self.add(child)
                self._ask(condition.renamed(names))
                return shape, names
            case Join(how="inner" | "cross"):
                return self._add_join(node)
            case Project(child=child) if is_join_tree(child):
                mark = self._mark()
                shape, names = self.add(child)
                made = self._add_columns(node, names)
                if made is not None:
                    return shape, made
                self._reset(mark)
        return self._add_input(node)

    def use_equalities(self) -> None:
        """Make keys of conditions that two inputs are equal."""
        rest = []
        for condition in self.conditions:
            pair = self._key_pair(condition)
            if pair is None:
                rest.append(condition)
            else:
                self.equal.append(pair)
        self.conditions = rest

    def inputs_of(self, expression: Expression) -> frozenset[int]:
        """The inputs that an expression reads."""
        return frozenset(self.owners[name] for name in expression.columns)

    def _free(self, name: str) -> str:
        """The name, with endings until no other column has it in any case."""
        while name.lower() in self._used:
            name += "_"
        self._used.add(name.lower())
        return name

    def _ask(self, condition: Expression) -> None:
        (self.last if condition.raises else self.conditions).append(condition)

    def _add_join(self, join: Join) -> tuple[Shape, dict[str, str]]:
        left_shape, left = self.add(join.left)
        right_shape, right = self.add(join.right)
        keys = zip(join.left_keys, join.right_keys, strict=True)
        self.equal += [(left[ours], right[theirs]) for ours, theirs in keys]
        if join.condition is not None:
            theirs = {new: right[source] for source, new in join.right_names if source in right}
            self._ask(join.condition.renamed({**left, **theirs}))
        names = {
            column.name: (right if column.side == "right" else left)[column.source]
            for column in join.columns
        }
        return (left_shape, right_shape), names

    def _add_input(self, node: Node) -> tuple[Shape, dict[str, str]]:
        number = len(self.inputs)
        new: dict[str, str] = {}
        for column in node.schema:
            name = self._free(column.name)
            new[column.name] = name
            self.types[name] = column.type
            self.owners[name] = number
        self.inputs.append(JoinInput(node, {name: old for old, name in new.items()}))
        return number, new

    def _add_columns(self, project: Project, names: dict[str, str]) -> dict[str, str] | None:
        """The new names of a projection's columns; None if one is not made of one input alone."""
        made = {}
        for name, column in project.columns:
            if column.is_column:
                made[name] = names[next(iter(column.columns))]
                continue
            moved = column.renamed({source: names[source] for source in column.columns})
            new = self._calculated(moved, name)
            if new is None:
                return None
            made[name] = new
        return made

    def _calculated(self, column: Expression, name: str) -> str | None:
        """The name of a column that is calculated in its input; None if it must not be."""
        owners = self.inputs_of(column)
        if len(owners) != 1 or column.raises:
            return None
        (number,) = owners
        source = self.inputs[number]
        if not all(used in source.names for used in column.columns):
            return None  # It is made of a column that is calculated itself.
        new = self._free(name)
        source.calculated.append((new, column))
        self.types[new] = to_arrow(column.type)
        self.owners[new] = number
        return new

    def _key_pair(self, condition: Expression) -> tuple[str, str] | None:
        sides = equal_sides(condition)
        if sides is None:
            return None
        try:
            parts = [typed_expression(side, self.schema) for side in sides]
        except ExpressionRefused:
            return None
        owners = [self.inputs_of(part) for part in parts]
        kind = common_with_text(parts[0].type, parts[1].type)
        if kind is None or any(len(numbers) != 1 for numbers in owners) or owners[0] == owners[1]:
            return None
        if not can_be_key(to_arrow(kind)):
            return None
        casts = [typed_expression(side, self.schema, cast_to=kind) for side in sides]
        if any(part.raises for part in casts):
            return None
        mark = self._mark()
        names = [
            next(iter(part.columns)) if part.is_column else self._calculated(part, "__key")
            for part in casts
        ]
        if names[0] is None or names[1] is None:
            self._reset(mark)
            return None
        return names[0], names[1]

    def _mark(self) -> tuple[int, ...]:
        return (
            len(self.inputs),
            len(self.conditions),
            len(self.last),
            len(self.equal),
            len(self.types),
            *(len(source.calculated) for source in self.inputs),
        )

    def _reset(self, mark: tuple[int, ...]) -> None:
        """Forget what was added since a mark."""
        inputs, conditions, last, equal, types, *calculated = mark
        del self.inputs[inputs:]
        del self.conditions[conditions:]
        del self.last[last:]
        del self.equal[equal:]
        for name in list(self.types)[types:]:
            del self.types[name]
            del self.owners[name]
            self._used.discard(name.lower())
        for source, count in zip(self.inputs, calculated, strict=True):
            del source.calculated[count:]


def is_join_tree(node: Node) -> bool:
    """Whether a node is an inner or a cross join, perhaps below filters and projections."""
    while isinstance(node, Filter | Project):
        node = node.child
    return isinstance(node, Join) and node.how in ("inner", "cross")


def can_be_key(kind: pa.DataType) -> bool:
    """Whether rows can be joined by a column of this type."""
    try:
        HashPartitioner(("key",), 1).check(pa.schema([("key", kind)]))
    except MillraceError:
        return False
    return True
