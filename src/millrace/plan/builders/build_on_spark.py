"""Builds the operator for what only Spark computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.identity.schemas import check_names
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import (
    OnSpark,
    SparkCall,
    SparkCode,
    SparkQuery,
    SparkText,
    SparkWork,
)
from millrace.plan.nodes.project import select_only
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.sql.spark_text import columns_read, why_of_today, why_unrecognised
from millrace.sql.sql_mode import current_mode

_NOT_READ: Final = "its text was not read here: the session gives texts another meaning"


def on_spark(
    analyzer: SparkAnalyzer,
    inputs: Sequence[tuple[str, Node]],
    query: SparkQuery,
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
    if unrecognised is None and isinstance(query, str):
        unrecognised = why_of_today(
            query,
            texts=any(_holds(schema, pt.is_string) for schema in schemas.values()),
            times=any(_holds(schema, pt.is_timestamp) for schema in schemas.values()),
        )
    if unrecognised is None and _reads_otherwise():
        unrecognised = _NOT_READ
    work = SparkWork(
        inputs=_narrowed(inputs, query), query=query, reason=reason, unrecognised=unrecognised
    )
    return OnSpark(work, schema, None, tuple(schema.names))


def _holds(schema: pa.Schema, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a column is of a kind, or has it inside."""
    waiting = list(schema.types)
    while waiting:
        kind = waiting.pop()
        if is_kind(kind):
            return True
        waiting += [kind.field(n).type for n in range(kind.num_fields)]
    return False


def _reads_otherwise() -> bool:
    """Whether the session gives texts another meaning than they have here."""
    mode = current_mode()
    return mode.text_on_spark is not None or mode.case_sensitive


def _narrowed(
    inputs: Sequence[tuple[str, Node]], query: SparkQuery
) -> tuple[tuple[str, Node], ...]:
    """The inputs without columns that the query does not read."""
    if not isinstance(query, str) or _reads_otherwise():
        return tuple(inputs)
    read = columns_read(query, {name: node.schema.names for name, node in inputs})
    return tuple((name, select_only(node, read[name])) for name, node in inputs)


def _why_call_unrecognised(call: SparkText | SparkCall | SparkCode) -> str | None:
    """Rows that are chosen at random are recognised by their seed, code by its identity."""
    if isinstance(call, SparkText):
        return "its text was not read here: Spark puts the values of its parameters in"
    if isinstance(call, SparkCode):
        return None if call.identity is not None else "code for Spark has no identity here"
    random = {"sample": 3, "sampleBy": 3, "randomSplit": 2}
    if call.method not in random:
        return None
    has_seed = call.kwargs.get("seed") is not None or len(call.args) >= random[call.method]
    return None if has_seed else f"{call.method} without a seed gives other rows each time"
