"""Runs a query over Arrow streams in DuckDB, with a memory limit and a folder to spill to.

Invariant: rows come out as Arrow batches of just the schema that was promised; the engine uses one
thread, as a task has one slot, and gives its results in the same order each time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from millrace.config import MIB
from millrace.errors import MillraceError, TaskFailed

BATCH_ROWS: Final = 131_072


def engine_version() -> str:
    """The version of the engine, which is part of what a result is made from."""
    return str(duckdb.__version__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How queries are run."""

    memory_bytes_max: int
    spill_folder: str
    time_zone: str

    def run(
        self, sql: str, inputs: Mapping[str, pa.RecordBatchReader], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a query over the named inputs. An input's own error comes out as it is."""
        caught: list[MillraceError] = []
        with tempfile.TemporaryDirectory(dir=self._spill_parent()) as spill:
            connection = duckdb.connect(
                ":memory:",
                config={
                    "threads": 1,
                    "memory_limit": f"{max(1, self.memory_bytes_max // MIB)}MiB",
                    "temp_directory": spill,
                    "autoinstall_known_extensions": False,
                },
            )
            try:
                connection.execute("SET TimeZone = ?", [self.time_zone])
                for name, stream in inputs.items():
                    rows = _watched(stream, caught)
                    watched = pa.RecordBatchReader.from_batches(stream.schema, rows)
                    connection.register(name, watched)
                found = connection.sql(sql).to_arrow_reader(BATCH_ROWS)
                for batch in found:
                    yield batch.cast(schema)
            except (duckdb.Error, OSError) as error:
                if caught:
                    raise caught[0] from error
                raise TaskFailed(f"a query failed in a task: {error}\n  query: {sql}") from error
            finally:
                connection.close()

    def _spill_parent(self) -> str:
        os.makedirs(self.spill_folder, exist_ok=True)
        return self.spill_folder


def _watched(stream: pa.RecordBatchReader, caught: list[MillraceError]) -> Iterator[pa.RecordBatch]:
    """Rows of an input; an error on the way is kept, as DuckDB passes on only its text."""
    try:
        yield from stream
    except MillraceError as error:
        caught.append(error)
        raise
