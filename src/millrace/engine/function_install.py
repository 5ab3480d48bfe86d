"""Gives a DuckDB instance the functions that it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

import millrace.sql.expression_typing  # noqa: F401 - its modules enter the functions
from millrace.sql.engine_functions import ENGINE_FUNCTIONS, Compute, Macro


def install_functions(
    database: duckdb.DuckDBPyConnection, names: Collection[str] | None = None
) -> None:
    """Make functions of these names, or all, for every connection of the instance.

    Each takes about half a millisecond, so an instance gets those that its queries call.
    """
    for entry in ENGINE_FUNCTIONS.values():
        if names is not None and entry.name not in names:
            continue
        if isinstance(entry, Macro):
            database.execute(f"CREATE MACRO {entry.name}({entry.parameters}) AS {entry.body}")
        else:
            database.create_function(
                entry.name,
                _over_arrays(entry.compute, len(entry.arguments)),
                list(entry.arguments),
                entry.returns,
                type=PythonUDFType.ARROW,
                null_handling=FunctionNullHandling.SPECIAL,
            )


def _over_arrays(compute: Compute, count: int) -> Any:  # noqa: ANN401 - what the engine calls
    def call(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
        arrays = [
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            for column in columns
        ]
        return compute(*arrays)

    # The engine counts the parameters of a function by its signature.
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"column_{number}", kind) for number in range(count)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
