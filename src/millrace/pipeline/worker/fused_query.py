"""The steps of a hop in front of its last one: filters and columns, as one query over each batch.

Invariant: a row that comes out has the offset of the one row that it was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.config import Config
from millrace.engine.duckdb_engine import Engine, PreparedQuery
from millrace.engine.query_writer import query
from millrace.errors import TaskFailed
from millrace.journal.core.row_format import OFFSET, OFFSET_FIELD
from millrace.limits import MIB
from millrace.pipeline.calling.call_failures import QueryFailed
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.hop_rows import HopRows, nothing
from millrace.pipeline.core.job_model import FilterStep, Select
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.sql.expressions import parse, parse_named
from millrace.sql.text_limits import limits_of

JOB_QUERY_BYTES_MAX: Final = 64 * MIB
"""The memory that the filters and columns of a step may use before they spill to disk."""


class FusedQuery:
    """Filters and selects that follow each other. Opened with the first rows."""

    def __init__(
        self,
        steps: Sequence[FilterStep | Select],
        schema: pa.Schema,
        *,
        config: Config,
        time_zone: str,
        scratch: str,
    ) -> None:
        self.name = steps[-1].name
        with limits_of(config):
            self.schema, self._root = _tree(steps, schema)
        self._engine = Engine(
            memory_bytes_max=min(JOB_QUERY_BYTES_MAX, config.query_memory_bytes_max),
            spill_folder=scratch,
            time_zone=time_zone,
        )
        self._open: PreparedQuery | None = None

    def run(self, rows: HopRows) -> HopRows:
        """The rows that the filters and columns make of some rows."""
        if not len(rows):
            return nothing(self.schema)
        if self._open is None:
            self._open = self._engine.prepare(query(self._root), self._root.schema)
        try:
            result = HopRows.from_offsets(self._open.run(rows.with_offsets()))
        except TaskFailed as error:
            failure = Failure(place=0, error=str(error), traceback="")
            raise QueryFailed(self.name, int(rows.offsets[0]), failure) from error
        assert (np.diff(result.offsets) >= 0).all(), "one thread keeps the order of rows"
        return result

    def close(self) -> None:
        """Close the query."""
        if self._open is not None:
            self._open.close()
            self._open = None


def _tree(steps: Sequence[FilterStep | Select], schema: pa.Schema) -> tuple[pa.Schema, Node]:
    """The columns that come out, and the plan, which passes the offsets on beside them."""
    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    root: Node = FunctionRows(pa.schema([OFFSET_FIELD, *plain]))
    offset = pass_columns(root.schema, [OFFSET])
    for step in steps:
        if isinstance(step, FilterStep):
            condition = parse(step.condition, plain, call=f"filter({step.condition!r})")
            root = Filter(root, condition)
            continue
        call = f"select({', '.join(map(repr, step.columns))})"
        named = [pair for text in step.columns for pair in parse_named(text, plain, call=call)]
        root = Project(root, (*offset, *named))
        plain = root.schema.remove(0)
    return plain, root
