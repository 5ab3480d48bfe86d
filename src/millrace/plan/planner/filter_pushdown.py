"""Pushes filters down, past operators and exchanges, to the scans.

The parts of a filter that can fail for some value stay where they were written: below they would
read rows that other filters drop. The other parts move. No filter passes rows that are saved, as
other queries read them too. A filter that cannot move, and a join's condition, push down what they
imply for one side.
Invariant: the plan's result is the same, rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.project import Project
from millrace.plan.planner.outer_joins import without_lost_rows
from millrace.sql.condition_parts import all_true, over_sources, parts_of
from millrace.sql.expressions import Expression
from millrace.sql.implied_conditions import implied_condition

_LEFT_NEEDS_PARTNER: Final = frozenset({"inner", "cross", "semi", "right"})
_RIGHT_NEEDS_PARTNER: Final = frozenset({"inner", "cross", "semi", "anti", "left"})
"""Joins in which a row of that side is seen only with a partner that meets the condition."""


def push_filters(plan: Node) -> Node:
    """The same plan, with filters as near to the scans as they can be."""
    if isinstance(plan, Filter):
        safe, rest = _parts(plan)
        if rest is not None and safe:
            return Filter(push_filters(_over(plan.child, safe)), rest)
        if len(safe) > 1:
            return push_filters(_over(plan.child, safe))
        if rest is None:
            plan = Filter(plan.child, safe[0])
            moved = _moved(plan)
            if moved is not None:
                return push_filters(moved)
            if _is_asked_below(plan):
                return push_filters(plan.child)
            plan = Filter(_narrowed(plan), plan.condition)
    if isinstance(plan, Join):
        plan = _by_condition(plan)
    return with_new_children(plan, [push_filters(child) for child in plan.children])


def _parts(plan: Filter) -> tuple[list[Expression], Expression | None]:
    """The parts of a filter that cannot fail, and the condition that the others are true.

    Parts that cannot fail are asked first: then others are asked for fewer rows, so no row fails
    that did not before. Spark pushes them down in the same way.
    """
    schema = plan.child.schema
    parts = parts_of(plan.condition, schema)
    safe = [part for part in parts if not part.raises]
    if not safe:
        return [], plan.condition
    if len(safe) == len(parts):
        return safe, None
    return safe, all_true([part for part in parts if part.raises], schema)


def _is_asked_below(plan: Filter) -> bool:
    """Whether a filter directly below has the same condition."""
    below = plan.child
    while isinstance(below, Filter):
        if below.condition.sql == plan.condition.sql:
            return True
        below = below.child
    return False


def _over(node: Node, conditions: Sequence[Expression]) -> Node:
    """Filters over a node, the first condition below the others."""
    for condition in conditions:
        node = Filter(node, condition)
    return node


def _moved(plan: Filter) -> Node | None:
    """The operator below, over filtered inputs; None if the filter cannot move."""
    below = plan.child
    if isinstance(below, Filter):
        inner = _moved(Filter(below.child, plan.condition))
        return None if inner is None else Filter(inner, below.condition)
    if isinstance(below, Join):
        stricter = without_lost_rows(below, plan.condition)
        if stricter is not below:
            return Filter(stricter, plan.condition)
    if isinstance(below, Project):
        return _past_project(plan.condition, below)
    passes = below.pushdown_columns(plan.condition.columns)
    if all(names is None for names in passes):
        return None
    children = [
        child if names is None else Filter(child, plan.condition.renamed(names))
        for child, names in zip(below.children, passes, strict=True)
    ]
    return below.with_children(*children)


def _past_project(condition: Expression, project: Project) -> Node | None:
    """A projection over a filtered child: over unchanged columns, or where it can move further."""
    sources = dict(project.columns)
    moved = over_sources(condition, sources, project.child.schema)
    if moved is None:
        return None
    if all(sources[name].is_column for name in condition.columns):
        return replace(project, child=Filter(project.child, moved))
    # Else the value would be calculated twice, which pays if fewer rows are joined.
    below = _moved(Filter(project.child, moved))
    return None if below is None else replace(project, child=below)


def _narrowed(plan: Filter) -> Node:
    """The child of a filter that stays, over inputs without rows that the filter drops."""
    below = plan.child
    if isinstance(below, Filter):
        return Filter(_narrowed(Filter(below.child, plan.condition)), below.condition)
    every = plan.condition.columns
    alone = {name: below.pushdown_columns(frozenset({name})) for name in every}
    children = list(below.children)
    for side, child in enumerate(children):
        own_names = frozenset(name for name in every if alone[name][side] is not None)
        weaker = implied_condition(plan.condition, below.schema, own_names) if own_names else None
        names = below.pushdown_columns(weaker.columns)[side] if weaker is not None else None
        if weaker is not None and names is not None:
            children[side] = Filter(child, weaker.renamed(names))
    return below.with_children(*children) if children else below


def _by_condition(join: Join) -> Join:
    """A join over sides without the rows for which its condition cannot be true."""
    if join.condition is None:
        return join
    theirs = {name: source for source, name in join.right_names}
    schema = join.condition_schema()
    left, right = join.left, join.right
    left_names = frozenset(join.left.schema.names)
    about_left = implied_condition(join.condition, schema, left_names)
    about_right = implied_condition(join.condition, schema, frozenset(theirs))
    if about_left is not None and join.how in _LEFT_NEEDS_PARTNER:
        left = Filter(left, about_left)
    if about_right is not None and join.how in _RIGHT_NEEDS_PARTNER:
        right = Filter(right, about_right.renamed(theirs))
    return join.with_children(left, right)
