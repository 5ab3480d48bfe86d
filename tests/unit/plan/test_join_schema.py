"""What a plan costs to describe grows with its size, not with its depth's power."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from millrace.plan.nodes.join import Join, JoinColumn
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ToOne
from millrace.plan.nodes.read_stage import ReadStage
from millrace.plan.nodes.union import Union

DEPTH = 12
COLUMNS = ("k", "a", "b", "c", "d")


@dataclass(frozen=True, slots=True, eq=False)
class Asked(ReadStage):
    """Counts how often its columns are asked for."""

    times: list[int] = field(default_factory=list)

    def make_schema(self) -> pa.Schema:
        self.times.append(1)
        return self.columns


def leaf() -> Asked:
    return Asked(0, pa.schema([(name, pa.int64()) for name in COLUMNS]), ToOne(broadcast=False))


def test_a_join_of_many_joins_asks_each_leaf_for_its_columns_once() -> None:
    leaves = [leaf() for _ in range(DEPTH + 1)]
    plan: Node = leaves[0]
    for right in leaves[1:]:
        plan = Join(
            left=plan,
            right=right,
            left_keys=("k",),
            right_keys=("k",),
            how="inner",
            columns=tuple(JoinColumn(name, "left", name) for name in COLUMNS),
        )

    assert plan.schema.names == list(COLUMNS)

    assert plan.schema is plan.schema
    assert [len(one.times) for one in leaves] == [1] * (DEPTH + 1)


def test_a_union_of_unions_asks_its_first_leaf_once() -> None:
    first = leaf()
    plan: Node = first
    for _ in range(DEPTH):
        plan = Union((plan, leaf()), COLUMNS)

    assert plan.schema.names == list(COLUMNS)

    assert len(first.times) == 1
