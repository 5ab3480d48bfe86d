"""A query that Spark runs as a whole, over the tables of ours that it names."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.operators import reason_of
from millrace.plan.nodes.node import Node
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.query_scope import QueryScope
from millrace.sql.parser import as_typed_literal, canonical
from millrace.sql.typed_sql import ExpressionRefused


def query_on_spark(scope: QueryScope, tree: exp.Expression, refused: ExpressionRefused) -> Relation:
    """The rows of a query that Spark runs; names that are not known here are Spark's."""
    assert scope.context.on_spark is not None
    inputs: dict[tuple[str, ...], tuple[str, Node]] = {}
    whole = tree.copy()
    own = {table.alias.lower() for table in whole.find_all(exp.CTE)}
    for table in list(whole.find_all(exp.Table)):
        name = tuple(part.name.lower() for part in table.parts)
        if not isinstance(table.this, exp.Identifier) or (len(name) == 1 and name[0] in own):
            continue
        if name not in inputs:
            relation = _relation(scope, tuple(part.name for part in table.parts))
            if relation is None:
                continue
            inputs[name] = (f"input_{len(inputs)}", _labelled(relation, refused))
        if not table.args.get("alias"):
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("this", exp.to_identifier(inputs[name][0]))
        table.set("db", None)
        table.set("catalog", None)
    text = canonical(whole.transform(as_typed_literal))
    node = scope.context.on_spark(list(inputs.values()), text, reason_of(refused))
    return relation_of(node)


def _relation(scope: QueryScope, name: tuple[str, ...]) -> Relation | None:
    if len(name) == 1 and name[0].lower() in scope.tables:
        return scope.tables[name[0].lower()]
    catalog = scope.context.catalog
    return None if catalog is None else catalog.relation(name)


def _labelled(relation: Relation, refused: ExpressionRefused) -> Node:
    """The plan of a table, whose columns are found by their labels."""
    if not relation.has_unique_labels:
        raise ExpressionRefused(
            "a table with two columns of one name cannot be shown to Spark",
            found=f"columns {', '.join(relation.labels)}; {reason_of(refused)}",
            fix="give one of them another name",
        )
    return relation.output()
