"""Builds the operator for what only Spark computes."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.identity.schemas import check_names
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import OnSpark, SparkCall, SparkWork
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.sql.spark_text import why_unrecognised


def on_spark(
    analyzer: SparkAnalyzer,
    inputs: Sequence[tuple[str, Node]],
    query: str | SparkCall,
    reason: str,
) -> Node:
    """Rows of a query that Spark runs over named inputs: SQL, or a method of DataFrame.

    Raises:
        UserError: Spark refuses the query as well.
    """
    schemas = {name: node.schema for name, node in inputs}
    assert len(schemas) == len(inputs), "inputs have names of their own"
    schema = analyzer.schema_of(query, schemas)
    check_names(schema)
    unrecognised = (
        why_unrecognised(query, {name: columns.names for name, columns in schemas.items()})
        if isinstance(query, str)
        else _why_call_unrecognised(query)
    )
    work = SparkWork(inputs=tuple(inputs), query=query, reason=reason, unrecognised=unrecognised)
    return OnSpark(work, schema, None, tuple(schema.names))


def _why_call_unrecognised(call: SparkCall) -> str | None:
    """Rows that are chosen at random are recognised by their seed."""
    random = {"sample": 3, "sampleBy": 3, "randomSplit": 2}
    if call.method not in random:
        return None
    has_seed = call.kwargs.get("seed") is not None or len(call.args) >= random[call.method]
    return None if has_seed else f"{call.method} without a seed gives other rows each time"
