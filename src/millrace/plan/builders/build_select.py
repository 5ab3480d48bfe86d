"""Builds projections: stars, names, aggregates and windows in a list of expressions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows, has_aggregate
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import (
    is_user_call,
    keep_calls,
    noted_calls,
    with_udf_columns,
)
from millrace.plan.builders.build_windows import with_window_columns
from millrace.plan.builders.generators.generator_items import attribute_tree, with_generators
from millrace.plan.builders.name_resolution import (
    attribute_of,
    find,
    is_resolved,
    plan_column,
    resolve,
)
from millrace.plan.builders.operators import named, project, typed
from millrace.plan.builders.spark_names import UNNAMED, UnnamedColumn, names_of_spark, with_names
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.relation import Attribute, Relation, free_columns, picked_columns
from millrace.plan.windows.time_windows import window_mark
from millrace.sql.expressions import Expression, expression_of, own_name
from millrace.sql.labels.spark_labels import SPARK_NAME, spark_label
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import WRITTEN, ExpressionRefused, NotNative

__all__ = [
    "SelectItem",
    "attribute_tree",
    "expand_stars",
    "items_with_columns",
    "select",
    "where",
    "with_columns",
]


@dataclass(frozen=True, slots=True)
class SelectItem:
    """An expression of a select list, with its label; `passed` if it is a column as it is."""

    label: str
    tree: exp.Expression
    passed: Attribute | None = None
    metadata: str | None = None
    unnamed: UnnamedColumn | None = None


def select(context: BuildContext, relation: Relation, trees: Sequence[exp.Expression]) -> Relation:
    """The columns of a select list. With an aggregate in it, all rows become one."""
    relation, trees = with_generators(context, relation, expand_stars(relation, trees))
    trees = [noted_calls(context, tree) for tree in trees]
    if any(map(has_aggregate, trees)):
        grouped = GroupedRows(context, relation, ())
        rewritten = [grouped.rewrite_item(tree) for tree in trees]
        return select(context, grouped.relation(), rewritten)
    return _projected(context, relation, [_item(relation, tree) for tree in trees])


def where(context: BuildContext, relation: Relation, condition: exp.Expression) -> Relation:
    """The rows for which a condition is true."""
    resolved = resolve(condition, relation.attributes)
    return relation.over(keep_calls(context, relation.node, resolved))


def expand_stars(relation: Relation, trees: Sequence[exp.Expression]) -> list[exp.Expression]:
    """The list with `*`, `t.*` and `struct.*` replaced by the columns or fields they stand for."""
    out: list[exp.Expression] = []
    for tree in trees:
        tree = _with_stars_inside(relation, tree)  # noqa: PLW2901 - the same item
        star = tree.this if isinstance(tree, exp.Column) else tree
        if isinstance(star, exp.Star):
            fields = _fields(relation, tree)
            out += fields or [attribute_tree(a) for a in _starred(relation, tree, star)]
        else:
            out.append(tree)
    return out


def _with_stars_inside(relation: Relation, tree: exp.Expression) -> exp.Expression:
    """The tree with columns for stars that are arguments: `struct(*)`; `count(*)` stays."""
    if not any(map(_has_stars, tree.find_all(exp.Anonymous))):
        return tree
    tree = tree.copy()
    for call in filter(_has_stars, list(tree.find_all(exp.Anonymous))):
        arguments = expand_stars(relation, call.expressions)
        for argument in arguments:
            attribute = argument.meta.get("attribute")
            if attribute is not None:
                argument.meta[WRITTEN] = attribute.label
        call.set("expressions", arguments)
    return tree


def _has_stars(call: exp.Anonymous) -> bool:
    return call.name.lower() != "count" and any(map(_is_star, call.expressions))


def _is_star(tree: exp.Expression) -> bool:
    return isinstance(tree.this if isinstance(tree, exp.Column) else tree, exp.Star)


def _fields(relation: Relation, tree: exp.Expression) -> list[exp.Expression]:
    """The fields of the column that `column.*` names; none if it names a table, or all columns."""
    if not isinstance(tree, exp.Column) or len(tree.parts) == 1 or any(tree.this.args.values()):
        return []
    table = [folded(part.name) for part in tree.parts[:-1]]
    if any([folded(q) for q in a.qualifier[-len(table) :]] == table for a in relation.visible):
        return []
    names = [part.copy() for part in reversed(tree.parts[:-1])]
    attribute = find(
        exp.Column(**dict(zip(("this", "table", "db"), names, strict=False))), relation.attributes
    )
    kind = None if attribute is None else relation.node.schema.field(attribute.column).type
    if attribute is None or kind is None or not pa.types.is_struct(kind):
        return []
    return [
        named(
            exp.Dot(
                this=plan_column(attribute.column),
                expression=exp.to_identifier(field.name, quoted=True),
            ),
            field.name,
        )
        for field in kind
    ]


def _starred(relation: Relation, tree: exp.Expression, star: exp.Star) -> list[Attribute]:
    table = [folded(part.name) for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
    attributes = [
        a
        for a in relation.visible
        if not table or [folded(q) for q in a.qualifier[-len(table) :]] == table
    ]
    if table and not attributes:
        raise ExpressionRefused(
            f"there is no table {'.'.join(table)}", found=tree.sql(), fix="name a table of FROM"
        )
    dropped = star.args.get("except_") or ()
    names = {
        attribute_of(c if isinstance(c, exp.Column) else exp.column(c), attributes).column
        for c in dropped
    }
    return [a for a in attributes if a.column not in names]


def _item(relation: Relation, tree: exp.Expression) -> SelectItem:
    body = tree.this if isinstance(tree, exp.Alias) else tree
    passed: Attribute | None = body.meta.get("attribute")
    resolved = resolve(body, relation.attributes)
    if passed is None and isinstance(resolved, exp.Column):
        name = resolved.name
        passed = next(a for a in relation.attributes if a.column == name)
        if isinstance(body, exp.Column) and not is_resolved(body):
            passed = replace(passed, label=body.name)  # In the case that the user wrote, as Spark.
    if isinstance(tree, exp.Alias):
        below = None if passed is None else passed.metadata
        metadata: str | None = tree.meta.get("metadata") or below or window_mark(body)
        passed = passed and Attribute(tree.alias, passed.column, metadata=metadata)
        return SelectItem(tree.alias, resolved, passed, metadata, tree.meta.get(UNNAMED))
    if passed is not None:
        return SelectItem(passed.label, resolved, replace(passed, hidden=False))
    if (label := _own_label(relation, body, resolved)) is not None:
        return SelectItem(label, resolved)
    unnamed = UnnamedColumn(resolved, relation)
    return SelectItem(spark_label(body), resolved, metadata=window_mark(body), unnamed=unnamed)


def _own_label(relation: Relation, body: exp.Expression, resolved: exp.Expression) -> str | None:
    """The name of an expression, by which its parts are known; None if they do not tell it."""
    is_cast = isinstance(resolved, exp.Cast | exp.TryCast)  # Of a column it has the column's name.
    if not is_cast and SPARK_NAME not in resolved.meta and not resolved.find(exp.Window):
        labels = {a.column: a.label for a in relation.attributes}
        try:
            return own_name(body, typed(resolved, relation.node.schema, labels))
        except NotNative:
            return None
        except ExpressionRefused:
            if not any(map(is_user_call, body.walk())):
                raise  # Spark names it. A user's function is no part of SQL: it is named here.
    return None


def _projected(context: BuildContext, relation: Relation, items: Sequence[SelectItem]) -> Relation:
    """The items as columns. Columns of the input stay as hidden ones: a sort may name them."""
    node, trees = with_udf_columns(context, relation.node, [item.tree for item in items])
    node, trees = with_window_columns(context, node, trees)
    node, trees = with_udf_columns(context, node, trees)
    columns = free_columns([item.label for item in items])
    by_column = list(zip(columns, trees, strict=True))
    visible = [
        replace(item.passed, column=column, label=item.label)
        if item.passed is not None
        else Attribute(item.label, column, metadata=item.metadata)
        for item, column in zip(items, columns, strict=True)
    ]
    shown = {item.passed.column for item in items if item.passed is not None}
    below = Counter(folded(name) for name in relation.node.schema.names)
    rest = [a for a in relation.visible if a.column not in shown and below[folded(a.column)] == 1]
    kept = free_columns([a.column for a in rest], columns)
    hidden = [replace(a, column=c, hidden=True) for a, c in zip(rest, kept, strict=True)]
    passed_on = [(c, plan_column(a.column)) for a, c in zip(rest, kept, strict=True)]
    schema = node.schema
    try:
        columns_of_node = tuple(
            (name, expression_of(tree, typed(tree, schema)))
            for name, tree in [*by_column, *passed_on]
        )
        node = _project_node(node, columns_of_node)
    except NotNative:
        node, hidden = project(context, node, by_column), []
    asked = names_of_spark(context, node, [item.unnamed for item in items])
    return Relation(node, (*with_names(visible, asked), *hidden))


def _project_node(node: Node, columns: tuple[tuple[str, Expression], ...]) -> Node:
    """A projection; one that only names the results of an aggregate becomes part of it."""
    if isinstance(node, Aggregate) and all(e.is_column for _, e in columns):
        return picked_columns(node, [(name, next(iter(e.columns))) for name, e in columns])
    return Project(node, columns)


def with_columns(
    context: BuildContext, relation: Relation, columns: Sequence[tuple[str, exp.Expression]]
) -> Relation:
    """The same columns and new ones, or new values for old ones, as Spark's `withColumns`."""
    return select(context, relation, items_with_columns(relation, columns))


def items_with_columns(
    relation: Relation, columns: Sequence[tuple[str, exp.Expression]]
) -> list[exp.Expression]:
    """The select list of `with_columns`."""
    bare = [tree.this if isinstance(tree, exp.Alias) else tree for _, tree in columns]
    trees = [named(tree, name) for tree, (name, _) in zip(bare, columns, strict=True)]
    by_name = {folded(name): tree for (name, _), tree in zip(columns, trees, strict=True)}
    replaced = {folded(a.label) for a in relation.visible} & by_name.keys()
    items: list[exp.Expression] = [
        by_name[folded(a.label)] if folded(a.label) in replaced else attribute_tree(a)
        for a in relation.visible
    ]
    new = [
        tree for (name, _), tree in zip(columns, trees, strict=True) if folded(name) not in replaced
    ]
    return [*items, *new]
