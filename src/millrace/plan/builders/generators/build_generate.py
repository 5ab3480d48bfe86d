"""Builds generators: explode, posexplode and inline, with their outer forms.

A generator stands in LATERAL VIEW or is an item of a select list. Other generators, as stack and
json_tuple, run on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.operators import expression, native_or_spark, spark_name, typed
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.row_makers.generate import Generate
from millrace.plan.relation import Attribute, Relation, free_columns
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.sql.types import SqlType

_KNOWN: Final = frozenset({"explode", "posexplode", "inline"})
_OTHERS: Final = frozenset({"stack", "json_tuple", "variant_explode"})


@dataclass(frozen=True, slots=True)
class Generator:
    """A call of a generator; `name` is without the ending of its outer form."""

    name: str
    arguments: tuple[exp.Expression, ...]
    outer: bool


def generator_of(tree: exp.Expression) -> Generator | None:
    """The generator that a tree is a call of; None if it is another tree."""
    if not isinstance(tree, exp.Anonymous):
        return None
    name = str(tree.this).lower()
    outer = name.endswith("_outer")
    name = name.removesuffix("_outer")
    if name not in _KNOWN | _OTHERS:
        return None
    return Generator(name, tuple(tree.expressions), outer)


def generate(
    context: BuildContext,
    relation: Relation,
    call: Generator,
    labels: Sequence[str] = (),
    qualifier: tuple[str, ...] = (),
) -> tuple[Relation, tuple[Attribute, ...]]:
    """Each row with each row that a generator makes of it, and the attributes of new columns."""
    if call.name not in _KNOWN or len(call.arguments) != 1:
        raise NotNative(f"the generator {call.name}", fix="")
    argument = resolve(call.arguments[0], relation.attributes)
    own = _labels(call.name, typed(argument, relation.node.schema).type)
    if labels and len(labels) != len(own):
        raise ExpressionRefused(
            f"{call.name} makes another number of columns",
            found=f"{len(labels)} names for {len(own)} columns",
            fix=f"name {len(own)} columns",
        )
    columns = free_columns(labels or own, relation.node.schema.names)
    node = _node(context, relation.node, call, argument, columns)
    new = tuple(
        Attribute(label, column, qualifier)
        for label, column in zip(labels or own, columns, strict=True)
    )
    return Relation(node, (*relation.attributes, *new)), new


def generate_on_spark(
    context: BuildContext, relation: Relation, call: Generator, labels: Sequence[str], why: str
) -> tuple[Relation, tuple[Attribute, ...]]:
    """The rows of a generator that only Spark has; Spark says how many columns it makes."""
    assert context.on_spark is not None, "asked for before"
    below = relation.node
    arguments = [canonical(resolve(tree, relation.attributes)) for tree in call.arguments]
    kept = [f"input_0.{spark_name(name)}" for name in below.schema.names]
    named = ", ".join(map(spark_name, free_columns(labels, below.schema.names)))
    view = f"LATERAL VIEW {'OUTER ' if call.outer else ''}{call.name}({', '.join(arguments)})"
    text = f"SELECT {', '.join([*kept, 'made.*'])} FROM input_0 {view} made"
    node = context.on_spark([("input_0", below)], f"{text} AS {named}" if named else text, why)
    columns = node.schema.names[len(kept) :]
    new = tuple(
        Attribute(label, column) for label, column in zip(labels or columns, columns, strict=True)
    )
    return Relation(node, (*relation.attributes, *new)), new


def _labels(name: str, kind: SqlType) -> list[str]:
    """Spark's names of a generator's columns."""
    if name == "inline" and kind.is_array and kind.element.is_struct:
        return [part.name for part in kind.element.parts]
    position = ["pos"] if name == "posexplode" else []
    if name != "inline" and kind.is_map:
        return [*position, "key", "value"]
    if name != "inline" and kind.is_array:
        return [*position, "col"]
    raise NotNative(f"{name} of type {kind}", fix="give it an array or a map")


def _node(
    context: BuildContext,
    below: Node,
    call: Generator,
    argument: exp.Expression,
    columns: Sequence[str],
) -> Node:
    with_position = call.name == "posexplode"

    def native() -> Node:
        return Generate(
            child=below,
            source=expression(argument, below.schema),
            columns=tuple(columns[1:] if with_position else columns),
            position=columns[0] if with_position else None,
            fields=call.name == "inline",
            outer=call.outer,
        )

    kept = [spark_name(name) for name in below.schema.names]
    named = ", ".join(map(spark_name, columns))
    view = f"LATERAL VIEW {'OUTER ' if call.outer else ''}{call.name}({canonical(argument)})"
    listed = ", ".join([*kept, *map(spark_name, columns)])
    return native_or_spark(
        context,
        native,
        [below],
        lambda: f"SELECT {listed} FROM input_0 {view} __generated AS {named}",
    )
