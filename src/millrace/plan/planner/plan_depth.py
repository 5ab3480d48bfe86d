"""Limits the number of operations in a plan, and how many follow one another.

Invariant: a plan within the limits never reaches the end of Python's stack.
"""

from __future__ import annotations

from typing import Final

from millrace.config import Config
from millrace.errors import UserError
from millrace.plan.nodes.node import Node
from millrace.sql.text_limits import DEEP_ENOUGH, make_room

_FRAMES_PER_NODE: Final = 12


def check_plan_size(plan: Node, config: Config) -> None:
    """Refuse a plan of too many operations; make room on Python's stack for others."""
    depth, count = size_of(plan)
    if depth > config.plan_depth_max:
        raise UserError(
            "too many operations of a dataset follow one another\n"
            f"  found: {depth:,}; plan_depth_max is {config.plan_depth_max:,}\n"
            "  to fix: calculate several columns in one with_columns, write the rows with "
            "write_parquet and read them again, or raise Config(plan_depth_max=...)"
        )
    if count > config.plan_operations_max:
        raise UserError(
            "a dataset consists of too many operations\n"
            f"  found: {count:,}; plan_operations_max is {config.plan_operations_max:,}\n"
            "  to fix: write what is used several times with write_parquet and read it again, or "
            "raise Config(plan_operations_max=...)"
        )
    if depth > DEEP_ENOUGH:
        make_room(depth * _FRAMES_PER_NODE)


def size_of(plan: Node) -> tuple[int, int]:
    """How many operations follow one another, and how many there are in all."""
    sizes: dict[int, tuple[int, int]] = {}
    waiting = [plan]
    while waiting:
        node = waiting[-1]
        children = node.children
        unknown = [child for child in children if id(child) not in sizes]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        below = [sizes[id(child)] for child in children]
        deepest = max((depth for depth, _ in below), default=0)
        sizes[id(node)] = 1 + deepest, 1 + sum(count for _, count in below)
    return sizes[id(plan)]
