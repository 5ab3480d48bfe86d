"""Which queries several threads may run, and how many threads a query gets.

A stage with fewer tasks than slots leaves slots idle; its tasks' queries use their threads.
Invariant: several threads run only queries whose rows are the same in whatever order rows are
read. Calls of Python keep one thread, which is all that Python runs at a time.
"""

from __future__ import annotations

from typing import Final

from millrace.limits import MIB
from millrace.plan.nodes.aggregate import (
    Aggregate,
    FinalAggregate,
    GroupingSetPartials,
    PartialAggregate,
)
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.nodes.ordered_joins import OrderedJoin
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.nodes.sort import Sort
from millrace.plan.nodes.union import Union
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression

_MEMORY_OF_THREAD: Final = 256 * MIB
_ANY_ORDER_NODES: Final = (
    *(Leaf, Filter, Project, Join, Sort, Union, MadeOnce, Expand, GroupingSetPartials),
    OrderedJoin,  # Rows are numbered as they are read, which the engine does in one thread.
)
_ANY_ORDER_CALLS: Final = frozenset(
    {
        *("sum", "wrapped_sum", "try_sum", "count", "avg", "min", "max"),
        *("bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"),
        *("stddev_samp", "stddev_pop", "var_samp", "var_pop", "median", "percentile"),
    }
)
"""Aggregates of rows in any order. Sums of doubles may differ in their last digits, as they do
wherever tasks aggregate parts of them."""


def takes_any_order(node: Node) -> bool:
    """Whether the rows of a tree are the same in whatever order its leaves are read."""
    match node:
        case Aggregate(aggregates=aggregates) | PartialAggregate(aggregates=aggregates):
            fits = _in_any_order(aggregates)
        case FinalAggregate(whole=whole):
            fits = _in_any_order(whole.aggregates)
        case _:
            fits = isinstance(node, _ANY_ORDER_NODES)
    return fits and all(map(takes_any_order, node.children))


def _in_any_order(aggregates: tuple[AggregateExpression, ...]) -> bool:
    calls = [call for aggregate in aggregates for call in aggregate.calls]
    return all(call.function in _ANY_ORDER_CALLS for call in calls)


def threads_within(memory_bytes: int, threads_max: int) -> int:
    """How many threads a query of this much memory has: each needs some for its own rows."""
    return max(1, min(threads_max, memory_bytes // _MEMORY_OF_THREAD))
