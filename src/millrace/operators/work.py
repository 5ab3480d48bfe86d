"""What a task of a stage does between reading and writing. Values, so that Spark can ship them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.operators.engine import Engine
from millrace.operators.inputs import Input


@dataclass(frozen=True, slots=True)
class PassOn:
    """Rows as they come."""

    def rows(
        self, inputs: Sequence[Input], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the one input."""
        del config, spill_folder
        yield from inputs[0].stream()

    def describe(self) -> dict[str, Any]:
        """All that decides the rows."""
        return {"work": "pass on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query over the inputs."""

    sql: str
    schema: pa.Schema
    time_zone: str

    def rows(
        self, inputs: Sequence[Input], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the query."""
        engine = Engine(
            memory_bytes_max=config.query_memory_bytes_max,
            spill_folder=spill_folder,
            time_zone=self.time_zone,
        )
        named = {f"input_{number}": one for number, one in enumerate(inputs)}
        return engine.run(self.sql, named, self.schema)

    def describe(self) -> dict[str, Any]:
        """All that decides the rows."""
        columns = [[f.name, str(f.type)] for f in self.schema]
        return {"work": "query", "sql": self.sql, "schema": columns, "zone": self.time_zone}


Work = PassOn | Query
