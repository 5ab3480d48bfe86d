"""Leaves rows without a partner out of a join's side before that side is exchanged.

The side that is expected to have fewer rows runs first. If few rows came out of it, the other
side's stage reads all of their keys and keeps the rows that have one of them: the engine takes the
keys into its scan, which leaves out row groups by their range and rows by a filter of their hashes.
Invariant: a join has the same rows. The keys are an input of the stage like any other, so work with
other keys is other work, and finished work is used again only for the same keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.plan.nodes.aggregate import FinalAggregate, PartialAggregate
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join, JoinColumn
from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.placement import ByHash
from millrace.plan.nodes.read_stage import ReadStage, is_broadcast
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.exchanges import ASKED_FOR, BROADCAST, SEVERAL_READERS, TO_BE_KEPT
from millrace.plan.planner.row_estimates import RowEstimates
from millrace.plan.planner.stages import Stage

_KEEPS_UNMATCHED_LEFT: Final = frozenset({"left", "anti", "full", "cross"})
_KEEPS_UNMATCHED_RIGHT: Final = frozenset({"right", "full", "cross"})
"""Joins in which a row of that side counts without a partner."""
_FEWER: Final = 2
"""The smaller side is expected to have so many times fewer rows, at least."""
_KEPT_MAX: Final = 0.5
"""Keys that may keep more of the other side's rows are not worth asking each row for."""
_WRONG: Final = 2
"""How many times too high a guess of rows may be, for a side to be waited for."""
_PROBED: Final = 2
"""All tasks together put so many keys for each row that they read into their tables, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducibleSide:
    """A stage `large`, of which only rows count whose keys are in the stage `small`.

    It pays if that one has at most `rows_max` rows of `bytes_max`.
    """

    small: int
    large: int
    large_keys: tuple[str, ...]
    small_keys: tuple[str, ...]
    rows_max: float
    bytes_max: int

    def pays_off(self, measured: Mapping[int, int], rows: Mapping[int, int]) -> bool:
        """Whether the small side has few enough rows, once their bytes and they are measured."""
        few = self.small in rows and rows[self.small] <= self.rows_max
        return few and measured[self.small] <= self.bytes_max


def reducible_sides(
    stages: Sequence[Stage], *, rows_min: int, bytes_max: int, split_bytes_target: int
) -> list[ReducibleSide]:
    """The sides of joins that may be reduced; each at most once, of at least `rows_min` rows."""
    return _Search(stages, rows_min, bytes_max, split_bytes_target).found()


def reduced(stages: Sequence[Stage], side: ReducibleSide) -> Stage:
    """The stage of the large side, which reads the keys of the small one."""
    large = stages[side.large]
    keys = ReadStage(side.small, stages[side.small].root.schema, BROADCAST)
    return replace(large, root=_with_keys(large.root, side.large_keys, keys, side.small_keys))


def _with_keys(
    node: Node, names: tuple[str, ...], keys: ReadStage, key_names: tuple[str, ...]
) -> Node:
    """A tree of which only rows with these keys are left, as near to its scans as can be."""
    below = _names_below(node, names)
    if isinstance(node, Filter) or not any(below):
        return Join(
            left=node,
            right=replace(keys),
            left_keys=names,
            right_keys=key_names,
            how="semi",
            columns=tuple(JoinColumn(name, "left", name) for name in node.schema.names),
        )
    children = [
        child if there is None else _with_keys(child, there, keys, key_names)
        for child, there in zip(node.children, below, strict=True)
    ]
    return with_new_children(node, children)


def _names_below(node: Node, names: tuple[str, ...]) -> list[tuple[str, ...] | None]:
    """For each child its names of some columns, if a filter on them can be asked there."""
    if isinstance(node, PartialAggregate | FinalAggregate):
        keys = node.keys if isinstance(node, PartialAggregate) else node.whole.keys
        return [names if set(names) <= set(keys) else None]
    if isinstance(node, Filter):
        return [names]
    passes = node.pushdown_columns(frozenset(names))
    found: list[tuple[str, ...] | None] = []
    for child, there in zip(node.children, passes, strict=True):
        own = None if there is None else tuple(there[name] for name in names)
        found.append(None if is_broadcast(child) else own)
    return found


class _Search:
    """Looks for sides of joins that can be reduced."""

    def __init__(
        self, stages: Sequence[Stage], rows_min: int, bytes_max: int, split_bytes_target: int
    ) -> None:
        self._stages = stages
        self._rows_min, self._bytes_max = rows_min, bytes_max
        self._split_bytes_target = split_bytes_target
        self._estimates = RowEstimates({stage.number: stage.root for stage in stages})
        self._readers = Counter(number for stage in stages for number in stage.reads)

    def found(self) -> list[ReducibleSide]:
        sides: dict[int, ReducibleSide] = {}
        for stage in self._stages:
            for join in _joins(stage.root):
                for side in self._of_join(join):
                    known = sides.get(side.large)
                    if known is None or self._rows(side.small) < self._rows(known.small):
                        sides[side.large] = side
        return list(sides.values())

    def _rows(self, number: int) -> float:
        return self._estimates.rows(self._stages[number].root)

    def _of_join(self, join: Join) -> list[ReducibleSide]:
        if not join.left_keys or is_broadcast(join.left) or is_broadcast(join.right):
            return []
        left, right = (join.left, join.left_keys), (join.right, join.right_keys)
        pairs = []
        if join.how not in _KEEPS_UNMATCHED_LEFT:
            pairs.append((left, right))
        if join.how not in _KEEPS_UNMATCHED_RIGHT:
            pairs.append((right, left))
        found = [self._side(large, small) for large, small in pairs]
        return [side for side in found if side is not None]

    def _side(
        self, large: tuple[Node, tuple[str, ...]], small: tuple[Node, tuple[str, ...]]
    ) -> ReducibleSide | None:
        ours, theirs = _read_below(*large), _read_below(*small)
        if ours is None or theirs is None or not self._may_reduce(ours[0], theirs[0]):
            return None
        root = self._stages[ours[0]].root
        known = [self._estimates.distinct_values(root, name) for name in ours[1]]
        rows = _rows_read(root, self._estimates)
        values = max([value for value in known if value is not None], default=rows)
        tasks = max(1, _tasks(root, self._split_bytes_target))
        rows_max = min(values * _KEPT_MAX, rows * _PROBED / tasks)
        if self._rows(theirs[0]) > _WRONG * rows_max:
            return None
        return ReducibleSide(
            small=theirs[0],
            large=ours[0],
            large_keys=ours[1],
            small_keys=theirs[1],
            rows_max=rows_max,
            bytes_max=self._bytes_max,
        )

    def _may_reduce(self, large: int, small: int) -> bool:
        stage = self._stages[large]
        own = stage.why not in (ASKED_FOR, TO_BE_KEPT, SEVERAL_READERS)
        return (
            large >= 0
            and small >= 0
            and large != small
            and own
            and not stage.alone
            and self._readers[large] == 1
            and not _calls_functions(stage.root)
            and self._rows(large) >= self._rows_min
            and self._rows(small) * _FEWER <= self._rows(large)
        )


def _joins(node: Node) -> list[Join]:
    below = [join for child in node.children for join in _joins(child)]
    return [*below, node] if isinstance(node, Join) else below


def _read_below(node: Node, names: tuple[str, ...]) -> tuple[int, tuple[str, ...]] | None:
    """The one exchanged stage that a filter on these columns can be asked in, and its names."""
    if isinstance(node, ReadStage):
        return (node.stage, names) if isinstance(node.placement, ByHash) else None
    found = [
        _read_below(child, there)
        for child, there in zip(node.children, _names_below(node, names), strict=True)
        if there is not None
    ]
    return found[0] if len(found) == 1 else None


def _calls_functions(node: Node) -> bool:
    return isinstance(node, FunctionNode) or any(map(_calls_functions, node.children))


def _rows_read(node: Node, estimates: RowEstimates) -> float:
    """The rows of all scans and stages that share the work of a stage."""
    if isinstance(node, Scan | ReadStage):
        return 0.0 if is_broadcast(node) else estimates.rows(node)
    return sum(_rows_read(child, estimates) for child in node.children)


def _tasks(node: Node, split_bytes_target: int) -> int:
    """The number of tasks of a stage, about."""
    if isinstance(node, Scan):
        return sum(-(-shape.bytes // split_bytes_target) for shape in node.source.shapes)
    if isinstance(node, ReadStage):
        return node.placement.partitions if isinstance(node.placement, ByHash) else 0
    return max((_tasks(child, split_bytes_target) for child in node.children), default=0)
