"""Builds the operator of a user's function."""

from __future__ import annotations

import pyarrow as pa

from millrace.errors import UserError
from millrace.identity.schemas import check_names, plain_schema
from millrace.plan.nodes.map_batches import Function, MapBatches, name_of
from millrace.plan.nodes.node import Node


def plan_map(child: Node, function: Function, schema: pa.Schema, version: str | None) -> Node:
    """A function over a node's rows, once the call is checked."""
    if not callable(function):
        raise UserError(
            f"map_batches() of {type(function).__name__}, which cannot be called\n"
            "  to fix: give a function from a RecordBatch to a RecordBatch, a Table or an iterator"
        )
    call = f"map_batches({name_of(function)})"
    if not isinstance(schema, pa.Schema):
        raise UserError(
            f"{call}: schema is a {type(schema).__name__}\n"
            "  to fix: say what the function returns, pa.schema([('name', pa.string()), ...])"
        )
    if not schema.names:
        raise UserError(f"{call}: schema has no columns\n  to fix: name at least one")
    if version is not None and not isinstance(version, str):
        raise UserError(f"{call}: version is {version!r}\n  to fix: give a text")
    check_names(schema)
    return MapBatches(child, function, plain_schema(schema), version)
