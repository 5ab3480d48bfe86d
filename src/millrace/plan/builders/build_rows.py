"""Builds operators over whole rows of relations: each once, the first ones, in other partitions."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import MillraceError
from millrace.keys import HashPartitioner
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.operators import native_or_spark, spark_name
from millrace.plan.builders.sort_orders import first_rows
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.exchange import Repartition
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ByHash, Evenly, InPlace
from millrace.plan.relation import Attribute, Relation
from millrace.sql.typed_sql import NotNative


def distinct(context: BuildContext, relation: Relation) -> Relation:
    """Each row once."""
    relation = relation.trimmed()
    node = relation.node
    keys = tuple(node.schema.names)

    def native() -> Node:
        check_hashable(node, keys)
        return Aggregate(node, keys, ())

    return relation.over(
        native_or_spark(context, native, [node], lambda: "SELECT DISTINCT * FROM input_0")
    )


def drop_duplicates(
    context: BuildContext, relation: Relation, attributes: Sequence[Attribute]
) -> Relation:
    """A whole row for each value of some columns: the first."""
    columns = {a.column for a in attributes}
    if columns == {a.column for a in relation.visible}:
        return distinct(context, relation)
    relation = relation.trimmed()
    node = relation.node
    keys = tuple(name for name in node.schema.names if name in columns)

    def native() -> Node:
        check_hashable(node, keys)
        return DropDuplicates(node, keys)

    def spark_sql() -> str:
        kept = ", ".join(map(spark_name, node.schema.names))
        by = ", ".join(map(spark_name, keys))
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY 1)"
        return (
            f"SELECT {kept} FROM (SELECT *, {number} AS __number FROM input_0) WHERE __number = 1"
        )

    return relation.over(native_or_spark(context, native, [node], spark_sql))


def limit(relation: Relation, rows: int | None, skipped: int = 0) -> Relation:
    """The first rows, without those that are skipped: after a sort as it puts them, else any."""
    return relation.over(first_rows(relation.node, rows, skipped))


def repartition(relation: Relation, partitions: int, keys: Sequence[Attribute]) -> Relation:
    """The rows by hash of the keys into this many partitions; without keys, evenly."""
    relation = relation.trimmed()
    names = tuple(attribute.column for attribute in keys)
    by = ByHash(names, partitions) if names else Evenly(partitions)
    return relation.over(Repartition(relation.node, by))


def saved(relation: Relation) -> Relation:
    """The rows, saved here: queries over them start from the saved files."""
    relation = relation.trimmed()
    return relation.over(Repartition(relation.node, InPlace()))


def check_hashable(node: Node, keys: Sequence[str]) -> None:
    """Keys that cannot be hashed as Spark does are compared by Spark."""
    if not keys:
        return
    try:
        HashPartitioner(tuple(keys), 1).check(node.schema)
    except MillraceError as error:
        raise NotNative("rows cannot be grouped by this type", found=str(error), fix="") from None
