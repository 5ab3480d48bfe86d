"""Builds unpivots: a row for each of some columns, with its name and its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import select, where
from millrace.plan.builders.name_resolution import plan_column, resolve
from millrace.plan.builders.operators import named, typed
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.relation import Relation
from millrace.sql.connect_literals import cast_tree
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import SqlType, common

_NUMBER: Final = "__unpivot"


@dataclass(frozen=True, slots=True)
class UnpivotedColumns:
    """The columns of one of the new rows, and the name that stands for them."""

    label: str
    columns: tuple[exp.Expression, ...]


def unpivoted(
    context: BuildContext,
    relation: Relation,
    kept: Sequence[exp.Expression],
    groups: Sequence[UnpivotedColumns],
    name: str,
    values: Sequence[str],
    *,
    nulls: bool,
) -> Relation:
    """The `kept` columns beside the name and the values of each group of columns.

    Without `nulls`, rows whose values all are null are left out.
    """
    resolved = [[resolve(c, relation.attributes) for c in group.columns] for group in groups]
    kinds = [
        _kind([typed(columns[at], relation.node.schema).type for columns in resolved])
        for at in range(len(values))
    ]
    rows = Relation(
        Expand(relation.node, (), tuple(() for _ in groups), _NUMBER), relation.attributes
    )
    labels = [exp.Literal.string(group.label) for group in groups]
    items = [*(tree.copy() for tree in kept), named(_chosen(labels), name)]
    for at, (label, kind) in enumerate(zip(values, kinds, strict=True)):
        columns = [cast_tree(columns[at].copy(), str(kind)) for columns in resolved]
        items.append(named(_chosen(columns), label))
    whole = select(context, rows, items).only_visible()
    if nulls:
        return whole
    missing = [
        exp.Not(this=exp.Is(this=plan_column(a.column), expression=exp.Null()))
        for a in whole.visible[len(whole.visible) - len(values) :]
    ]
    condition: exp.Expression = missing[0]
    for part in missing[1:]:
        condition = exp.Or(this=condition, expression=part)
    return where(context, whole, condition)


def _chosen(trees: Sequence[exp.Expression]) -> exp.Expression:
    """The tree of a row, by the number of its group."""
    if len(trees) == 1:
        return trees[0]
    cases = [
        exp.If(
            this=exp.EQ(this=plan_column(_NUMBER), expression=exp.Literal.number(number)),
            true=tree,
        )
        for number, tree in enumerate(trees[:-1])
    ]
    return exp.Case(ifs=cases, default=trees[-1])


def _kind(kinds: Sequence[SqlType]) -> SqlType:
    whole = kinds[0]
    for kind in kinds[1:]:
        wider = common(whole, kind)
        if wider is None:
            raise NotNative(
                "an unpivot of columns whose types differ", found=f"{whole}, {kind}", fix=""
            )
        whole = wider
    return whole
