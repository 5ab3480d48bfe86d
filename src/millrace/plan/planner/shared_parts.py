"""Finds parts of a plan that are written several times, and makes each of them once.

A part is read through `SharedRows` while the plan around it is optimised, so each of its readers
has its own filters and columns above it. The part itself then gets the columns that any reader
needs, and the condition that some reader's filter is true. A join is not shared if its readers
filter differently, because filters that reach the scans save more than a join costs, nor if it is
part of a larger join, because then there may be a better order of joins.
Invariant: the plan's result is the same, and equal plans are shared alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from sqlglot import exp

from millrace.plan.nodes.exchange import Repartition
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.project import Project, select_only
from millrace.plan.nodes.shared_parts.made_once import MadeOnce, SharedRows
from millrace.plan.planner.plan_identity import PlanIdentity
from millrace.sql.condition_parts import typed_expression
from millrace.sql.expressions import Expression
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused

Optimise = Callable[[Node], Node]

_CONDITIONS_MAX: Final = 16
"""Of readers with more different filters, none reaches the shared part."""


def optimise_shared(plan: Node, optimise: Optimise) -> Node:
    """The optimised plan, in which equal parts are one `MadeOnce`."""
    identity = PlanIdentity()
    apart: set[int] = set()
    while True:
        numbered = _SharedPlan(plan, identity, frozenset(apart))
        whole = optimise(numbered.plan)
        bodies: dict[int, Node] = {}
        read_by: dict[int, list[_Reader]] = {}
        _add_readers(whole, read_by)
        for number in sorted(numbered.parts, reverse=True):  # Readers have higher numbers.
            readers = read_by.get(number, [])
            if not readers:
                continue
            if _is_join(numbered.parts[number]) and _pays_off_apart(readers):
                apart.add(numbered.identities[number])
                break
            bodies[number] = optimise(_needed(numbered.parts[number], readers))
            _add_readers(bodies[number], read_by)
        else:
            once = {number for number, readers in read_by.items() if len(readers) == 1}
            return _Expansion(bodies, once).expanded(whole)


class _SharedPlan:
    """A plan whose equal parts are leaves; `parts` has their rows, those that are read first."""

    def __init__(self, plan: Node, identity: PlanIdentity, apart: frozenset[int]) -> None:
        self._identity = identity
        self._apart = apart
        self._readers: Counter[int] = Counter()
        self._counted: set[int] = set()
        self._leaves: dict[int, SharedRows] = {}
        self.parts: dict[int, Node] = {}
        self.identities: dict[int, int] = {}
        self._count(plan)
        self.plan = self._replaced(plan)

    def _count(self, node: Node) -> None:
        """Count by how many operators each part is read; equal operators are one."""
        for child in node.children:
            part = self._identity.of(child)
            if part is not None:
                self._readers[part] += 1
                if part in self._counted and part not in self._apart:
                    continue
                self._counted.add(part)
            self._count(child)

    def _replaced(self, node: Node) -> Node:
        part = self._identity.of(node)
        if part is not None and part in self._leaves:
            return self._leaves[part]
        children = [self._replaced(child) for child in node.children]
        rows = with_new_children(node, children)
        if part is None or part in self._apart or self._readers[part] <= 1 or not _is_work(node):
            return rows
        number = len(self.parts)
        self.parts[number], self.identities[number] = rows, part
        self._leaves[part] = SharedRows(number, rows, tuple(rows.schema.names))
        return self._leaves[part]


class _Reader:
    """A place that reads shared rows: the columns, and the filters above that cannot fail."""

    def __init__(self, rows: SharedRows, filters: Sequence[Expression], *, is_joined: bool) -> None:
        self.columns = rows.columns
        self.filters = tuple(dict.fromkeys(e for e in filters if not e.raises))
        self.is_joined = is_joined

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(sorted(condition.text for condition in self.filters))


def _add_readers(node: Node, read_by: dict[int, list[_Reader]]) -> None:
    for rows, reader in _readers_below(node, (), is_joined=False):
        read_by.setdefault(rows.number, []).append(reader)


def _readers_below(
    node: Node, filters: tuple[Expression, ...], *, is_joined: bool
) -> Iterator[tuple[SharedRows, _Reader]]:
    """The readers in a tree; `is_joined` says that the tree is a side of a join."""
    if isinstance(node, SharedRows):
        yield node, _Reader(node, filters, is_joined=is_joined)
    elif isinstance(node, Filter):
        above = (*filters, node.condition)
        yield from _readers_below(node.child, above, is_joined=is_joined)
    else:
        reordered = isinstance(node, Join) and node.how in ("inner", "cross")
        joined = reordered or (is_joined and isinstance(node, Project))
        for child in node.children:
            yield from _readers_below(child, (), is_joined=joined)


def _needed(part: Node, readers: Sequence[_Reader]) -> Node:
    """The rows of a part that some reader wants, with the columns that some reader wants."""
    wanted = {name for reader in readers for name in reader.columns}
    condition = _any_true(part, readers)
    rows = part if condition is None else Filter(part, condition)
    return select_only(rows, [name for name in part.schema.names if name in wanted])


def _any_true(part: Node, readers: Sequence[_Reader]) -> Expression | None:
    """The condition that the filters of some reader are true; None if it may hold for any row."""
    different = {reader.texts: reader.filters for reader in readers}
    if () in different or len(different) > _CONDITIONS_MAX:
        return None
    every = [_chain(exp.And, map(_tree, filters)) for filters in different.values()]
    whole = _chain(exp.Or, every)
    try:
        condition = typed_expression(whole, part.schema)
    except ExpressionRefused:
        return None
    return None if condition.raises else condition


def _tree(condition: Expression) -> exp.Expression:
    return read(condition.text)


def _chain(kind: type[exp.And | exp.Or], trees: Iterable[exp.Expression]) -> exp.Expression:
    first, *rest = trees
    whole: exp.Expression = exp.Paren(this=first) if rest else first
    for tree in rest:
        whole = kind(this=whole, expression=exp.Paren(this=tree))
    return whole


def _pays_off_apart(readers: Sequence[_Reader]) -> bool:
    """Whether filters or the order of joins save more than to make a join once."""
    return len({reader.texts for reader in readers}) > 1 or any(r.is_joined for r in readers)


def _is_work(node: Node) -> bool:
    """Whether a part is more than rows of a scan, some of them, with calculated columns.

    Rows that a user saves or spreads over tasks are as they are asked for.
    """
    if isinstance(node, Repartition):
        return False
    is_work = node.requires_shuffle() or isinstance(node, FunctionNode)
    return is_work or any(map(_is_work, node.children))


def _is_join(node: Node) -> bool:
    while isinstance(node, Filter | Project):
        node = node.child
    return isinstance(node, Join)


class _Expansion:
    """Puts optimised parts in the place of `SharedRows`."""

    def __init__(self, bodies: dict[int, Node], once: set[int]) -> None:
        self._bodies = bodies
        self._once = once
        self._made: dict[int, Node] = {}

    def expanded(self, node: Node) -> Node:
        """The plan with every part in its place; one object for all readers of a part."""
        if not isinstance(node, SharedRows):
            return with_new_children(node, [self.expanded(child) for child in node.children])
        if node.number not in self._made:
            rows = self.expanded(self._bodies[node.number])
            is_alone = node.number in self._once
            self._made[node.number] = rows if is_alone else MadeOnce(rows, node.number)
        return select_only(self._made[node.number], node.columns)


class SharedReads:
    """The shared rows of a plan: how often each is read, and what is put in their place."""

    def __init__(self, plan: Node) -> None:
        self.placed: dict[int, Node] = {}
        self._readers = _shared_readers(plan)
        self._of_functions = _read_by_functions(plan)

    def is_query(self, node: Node) -> bool:
        """Whether the shared rows can be a part of the query of their one task.

        The rows that a function gets come of a query of their own.
        """
        return id(node) not in self._of_functions

    def all_below(self, node: Node) -> bool:
        """Whether one query reads the shared rows that are read below a node, and no other."""
        below = _shared_readers(node)
        alone = all(self._readers[part] == count for part, count in below.items())
        return alone and self._of_functions.isdisjoint(below)


def _shared_readers(plan: Node) -> Counter[int]:
    """How many operators read each of the shared rows, by identity."""
    readers: Counter[int] = Counter()
    waiting = [plan]
    while waiting:
        for child in waiting.pop().children:
            if isinstance(child, MadeOnce):
                readers[id(child)] += 1
                if readers[id(child)] > 1:
                    continue
            waiting.append(child)
    return readers


def _read_by_functions(plan: Node) -> frozenset[int]:
    """The shared rows that a user's function gets, by identity."""
    if isinstance(plan, FunctionNode):
        return frozenset(_shared_readers(plan))
    return frozenset().union(*map(_read_by_functions, plan.children))
