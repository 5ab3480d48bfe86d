"""PIVOT and UNPIVOT."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import attribute_tree
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.reshape import build_pivot, build_unpivot
from millrace.plan.builders.reshape.build_pivot import Pivot
from millrace.plan.builders.reshape.build_unpivot import UnpivotedColumns
from millrace.plan.builders.reshape.pivot_values import given_value
from millrace.plan.relation import Relation
from millrace.plan.statements.query_scope import columns_in
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def with_pivot(context: BuildContext, relation: Relation, tree: exp.Pivot) -> Relation:
    """Rows with values of a column as columns, or columns as values of one."""
    if len(tree.args["fields"]) != 1 or not isinstance(tree.args["fields"][0], exp.In):
        raise NotNative("this pivot", found=tree.sql("spark"), fix="")
    relation = relation.only_visible()
    if tree.args.get("unpivot"):
        return _unpivoted(context, relation, tree)
    return _pivoted(context, relation, tree)


def _pivoted(context: BuildContext, relation: Relation, tree: exp.Pivot) -> Relation:
    """Groups by all columns that the pivot does not name, as Spark takes them."""
    (field,) = tree.args["fields"]
    columns = _listed(field.this)
    used = {
        name
        for part in [*columns, *tree.expressions]
        for name in columns_in(resolve(part, relation.attributes))
    }
    keys = [attribute_tree(a) for a in relation.visible if a.column not in used]
    values = tuple(given_value(value) for value in field.expressions)
    if not values or any(len(value.literals) != len(columns) for value in values):
        raise NotNative("a pivot of other values", found=tree.sql("spark"), fix="")
    pivot = Pivot(tuple(columns), values)
    return build_pivot.pivoted(context, relation, keys, pivot, tree.expressions)


def _unpivoted(context: BuildContext, relation: Relation, tree: exp.Pivot) -> Relation:
    (field,) = tree.args["fields"]
    (listed,) = tree.expressions
    values = [name.name for name in _listed(listed)]
    groups = []
    for part in field.expressions:
        aliased = isinstance(part, exp.PivotAlias | exp.Alias)
        columns = _listed(part.this if aliased else part)
        if len(columns) != len(values) or not all(isinstance(c, exp.Column) for c in columns):
            raise ExpressionRefused(
                f"UNPIVOT has columns for {len(values)} values",
                found=part.sql("spark"),
                fix="list as many columns as values",
            )
        label = part.alias if aliased else "_".join(column.name for column in columns)
        groups.append(UnpivotedColumns(label, tuple(columns)))
    used = {
        name
        for group in groups
        for column in group.columns
        for name in columns_in(resolve(column, relation.attributes))
    }
    kept = [attribute_tree(a) for a in relation.visible if a.column not in used]
    return build_unpivot.unpivoted(
        context,
        relation,
        kept,
        groups,
        field.this.name,
        values,
        nulls=bool(tree.args.get("include_nulls")),
    )


def _listed(tree: exp.Expression) -> list[exp.Expression]:
    """What stands in brackets, or the one thing that stands without."""
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return list(tree.expressions) if isinstance(tree, exp.Tuple) else [tree]
