"""Gives a DuckDB instance the functions that it lacks."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

import millrace.sql.expression_typing  # noqa: F401 - its modules enter the functions
from millrace.sql.engine_functions import ENGINE_FUNCTIONS, Compute, Macro


def install_functions(database: duckdb.DuckDBPyConnection) -> None:
    """Make all functions, for every connection of the instance."""
    for entry in ENGINE_FUNCTIONS.values():
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


def _over_arrays(compute: Compute, arguments: int) -> Any:  # noqa: ANN401 - what the engine calls
    def call(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
        arrays = [
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            for column in columns
        ]
        return compute(*arrays)

    kind = Parameter.POSITIONAL_ONLY
    # The engine counts the parameters.
    named = [Parameter(f"argument_{number}", kind) for number in range(arguments)]
    call.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return call
