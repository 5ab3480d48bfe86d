"""Spark's own names of columns without AS that Spark computes.

Spark adds arguments that were left out, collations and the like to the names of its functions. So
Spark's analyzer is asked, and nothing is run. Each column that is read stands in a relation of its
own: two columns of one name stay two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import has_udf
from millrace.plan.builders.name_resolution import is_resolved
from millrace.plan.builders.operators import named, with_sql_form
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import OnSpark
from millrace.plan.relation import Attribute, Relation
from millrace.sql.functions.nested.field_updates import is_update
from millrace.sql.labels.spark_labels import SPARK_NAME
from millrace.sql.parser import as_typed_literal, canonical
from millrace.sql.typed_sql import WRITTEN

UNNAMED: Final = "unnamed"
"""The key in `meta` of an alias that was not the user's: the column it names."""


@dataclass(frozen=True, slots=True, eq=False)
class UnnamedColumn:
    """An expression without AS over rows, or over groups of them: a tree that is resolved.

    `in_sets` says that the groups are by several sets of the keys.
    """

    tree: exp.Expression
    relation: Relation
    keys: tuple[exp.Expression, ...] = ()
    in_sets: bool = False

    def __deepcopy__(self, memo: object) -> UnnamedColumn:
        """The same: trees are copied with what they hold in `meta`."""
        return self


def named_anew(tree: exp.Expression, label: str, column: UnnamedColumn) -> exp.Alias:
    """An expression in place of another one, under the label that the other one has here."""
    alias = named(tree, label)
    alias.meta[UNNAMED] = column
    return alias


def unnamed_key(
    key: exp.Expression, resolved: exp.Expression, relation: Relation
) -> UnnamedColumn | None:
    """A key of groups that has no name of the user's; None if it has one."""
    if isinstance(key, exp.Alias) or isinstance(resolved, exp.Column):
        return None
    return UnnamedColumn(resolved, relation)


def with_names(attributes: Sequence[Attribute], names: Sequence[str | None]) -> list[Attribute]:
    """The attributes under the names that Spark has for them."""
    return [
        attribute if name is None else replace(attribute, label=name)
        for attribute, name in zip(attributes, names, strict=True)
    ]


def names_of_spark(
    context: BuildContext, built: Node, columns: Sequence[UnnamedColumn | None]
) -> list[str | None]:
    """The names of columns of a plan that Spark computes; None for a column that it does not."""
    names: list[str | None] = [None] * len(columns)
    if context.analyzer is None:
        return names
    by_rows: dict[tuple[object, ...], list[tuple[int, UnnamedColumn]]] = {}
    for number, column in enumerate(columns):
        if column is not None and _has_sql_form(context, column.tree):
            place = (id(column.relation), column.keys, column.in_sets)
            by_rows.setdefault(place, []).append((number, column))
    for numbered in by_rows.values():
        if _is_on_spark(built, numbered[0][1].relation.node):
            asked = _asked(context, [column for _, column in numbered])
            for (number, _), name in zip(numbered, asked, strict=True):
                names[number] = name
    return names


def _has_sql_form(context: BuildContext, tree: exp.Expression) -> bool:
    """Whether the tree is written as SQL in the form that names it."""
    if tree.find(exp.Query) or has_udf(context, tree):
        return False
    return not any(
        _is_named_otherwise(node) or is_update(node) for node in tree.find_all(exp.Expression)
    )


def _is_named_otherwise(node: exp.Expression) -> bool:
    """Whether another tree names it that is no literal."""
    return SPARK_NAME in node.meta and not isinstance(node.meta[SPARK_NAME], exp.Literal | exp.Neg)


def _is_on_spark(built: Node, below: Node) -> bool:
    """Whether a plan has a part that Spark computes above another plan."""
    if built is below:
        return False
    return isinstance(built, OnSpark) or any(_is_on_spark(n, below) for n in built.children)


def _asked(context: BuildContext, columns: Sequence[UnnamedColumn]) -> list[str | None]:
    assert context.analyzer is not None
    relation, keys = columns[0].relation, columns[0].keys
    inputs: dict[str, str] = {}
    trees = [_over_inputs(column.tree, relation, inputs) for column in columns]
    grouped = ", ".join(_over_inputs(key, relation, inputs) for key in keys)
    by = (f"ROLLUP({grouped})" if columns[0].in_sets else grouped) if keys else ""
    rows = f" FROM {' CROSS JOIN '.join(inputs.values())}" if inputs else ""
    schema = relation.node.schema
    labels = {a.column: a.label for a in relation.attributes}
    empty = {
        name: pa.schema([pa.field(labels[column], schema.field(column).type)])
        for column, name in inputs.items()
    }
    text = f"SELECT {', '.join(trees)}{rows}{f' GROUP BY {by}' if by else ''}"
    try:
        return list(context.analyzer.schema_of(text, empty).names)
    except UserError:  # It is no query of the user's: the names that are known here stay.
        return [None] * len(columns)


def _over_inputs(tree: exp.Expression, relation: Relation, inputs: dict[str, str]) -> str:
    """The text of a tree whose columns stand in relations, by the names that users gave them."""
    labels = {a.column: a.label for a in relation.attributes}

    def named_as_written(node: exp.Expression) -> exp.Expression:
        node = node.meta.get(SPARK_NAME, node)
        if not isinstance(node, exp.Column) or not is_resolved(node):
            return as_typed_literal(node)
        name = inputs.setdefault(node.name, f"input_{len(inputs)}")
        written = node.meta.get(WRITTEN, labels[node.name])
        return exp.column(exp.to_identifier(written, quoted=True), table=name)

    form = with_sql_form(tree, relation.node.schema)
    return canonical(form.transform(named_as_written))
